"""Every command and every code block of the documentation works.

The default tier checks what costs little: names, options, files, config keys. The slow tier runs
all blocks, page by page, but for those whose comment states why they cannot run here.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from agentgym_env.cli.main import _commands, make_app
from agentgym_env.errors import MissingExtra
from agentgym_servers.fleet.spec import fleet_of
from agentgym_train.algorithms import TokenBatch
from agentgym_train.config.checks import converted_value
from agentgym_train.config.read import method_config, read_method_config
from agentgym_train.evaluation.suite import Suite
from doc_blocks import ELSEWHERE, INSTALLS, LANGUAGES, PAGES, ROOT, SHELL, Block, Page, read_blocks

ELSEWHERE_INSTALLED = {"openenv", "verifiers", "browsergym", "agentlab", "bgym"}
"""Packages that live in environments of their own."""
COMMON = {"model": "a-model", "output_dir": "runs/x"}
NEEDED = {
    "rl": COMMON | {"env": "agentgym/TextCraft-v0"},
    "sft": COMMON | {"env": "agentgym/TextCraft-v0", "data": ["runs/expert"]},
    "evolve": COMMON,
}
"""Method -> required keys, which a part of a config may leave out."""
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def blocks_of(page: Path) -> tuple[Block, ...]:
    return tuple(read_blocks(page.read_text(encoding="utf-8")))


def of_blocks(check: Any) -> list[str]:
    """What `check` reports of each block, with its place."""
    return [
        f"{name_of(page)}:{block.line}: {problem}"
        for page in PAGES
        for block in blocks_of(page)
        for problem in check(block)
    ]


def commands_of(block: Block) -> Iterator[list[str]]:
    for command in block.commands():
        for part in re.split(r"&&|\|", command) if "'" not in command else [command]:
            yield shlex.split(part, comments=True)


RUNNABLE = [
    page
    for page in PAGES
    if name_of(page) not in ELSEWHERE
    and any(b.language in (*SHELL, "python") and not b.why_skipped() for b in blocks_of(page))
]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_the_blocks_of_a_page_run_in_order(page, tmp_path):
    with Page(tmp_path) as reader:
        for block in blocks_of(page):
            runs = block.language in (*SHELL, "python") or block.file
            if runs and not block.why_skipped():
                reader.run(block)


def test_blocks_run_or_state_why_they_do_not(capsys):
    counted, reasons = Counter[str](), Counter[str]()
    for page in PAGES:
        for block in blocks_of(page):
            if block.hidden:
                continue
            lines = block.commands() if block.language in SHELL else [""]
            for line in lines:
                why = block.why_skipped(line)
                kind = {"text": "output", "yaml": "configs, checked"}.get(block.language)
                if kind is None and name_of(page) in ELSEWHERE:
                    kind = "run by another test"
                elif kind is None:
                    kind = "only checked" if why else "run"
                counted[kind] += 1
                reasons[why] += kind == "only checked"
    with capsys.disabled():
        sys.stdout.write(f"\nCommands and blocks of the documentation: {dict(counted)}\n")
        for reason, count in (+reasons).most_common():
            sys.stdout.write(f"  {count} only checked: {reason}\n")
    assert counted["run"] > counted["only checked"], counted


@pytest.mark.parametrize("note", ["skip", "skip,", "skip, ", "skip, slow", "skip agentgym train"])
def test_a_skip_without_a_reason_is_refused(note):
    with pytest.raises((AssertionError, ValueError), match="line 2: "):
        list(read_blocks(f"<!-- docs-test: {note} -->\n```\nagentgym train x.yaml\n```\n"))


def test_no_command_of_a_page_is_one_of_the_shell_s_own_by_mistake():
    """`eval` and `test` are programs of packages, and would run the shell's own command."""
    own = {"eval", "test", "time", "type", "command", "exec"}

    def shadowed(block):
        for words in commands_of(block):
            if words and words[0] in own:
                yield f"{words[0]} is the shell's own command; write the program's path"

    assert not of_blocks(shadowed)


def test_languages_are_those_that_the_tests_know():
    assert not of_blocks(lambda block: [block.language] * (block.language not in LANGUAGES))


def test_yaml_blocks_are_valid_configs():
    def invalid(block):
        if block.language == "yaml" and not block.why_skipped():
            values = yaml.safe_load(block.text)
            try:
                if isinstance(values.get("servers"), dict):
                    fleet_of(values)
                    return
                if "evaluations" in values:
                    converted_value(values, Suite, "suite")
                    return
                needed = NEEDED[values.get("method", "rl")]
                if "envs" in values:
                    needed = {name: value for name, value in needed.items() if name != "env"}
                method_config(needed | values)
            except Exception as error:
                yield str(error)

    assert not of_blocks(invalid)


def test_commands_parse_and_configs_are_valid():
    apps = {name: typer.main.get_command(make_app([name])).commands[name] for name in _commands()}

    def rejected(block):
        for words in commands_of(block):
            if "agentgym" not in words[:1]:
                continue
            command = apps.get(words[1])
            if command is None:
                yield f"no command {words[1]}"
                continue
            try:
                context = command.make_context(f"agentgym {words[1]}", words[2:])
            except click.exceptions.Exit:  # --help and the like
                continue
            except click.ClickException as error:
                yield f"{' '.join(words)}: {error.format_message()}"
                continue
            config = context.params.get("config")
            if words[1] == "train" and config and (ROOT / config).is_file():
                read_method_config(ROOT / config, context.args)

    assert not of_blocks(rejected)


def test_make_targets_and_scripts_exist():
    def missing(block):
        for words in commands_of(block):
            if words[0] == "make":
                yield from {word for word in words[1:] if "=" not in word} - MAKE_TARGETS
            script = next((word for word in words[1:] if word.endswith(".py")), None)
            if "python" in words[0] and words[1] == script and "/" in words[1]:
                yield from [script] * (not (ROOT / script).is_file())

    assert not of_blocks(missing)


def test_extras_that_are_installed_exist():
    extras = import_module("tomllib").loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]

    def unknown(block):
        for command in block.commands():
            if INSTALLS.match(command):
                for named in re.findall(r"(?:agentgym-sdk|\.)\[([^\]]+)\]", command):
                    yield from set(named.split(",")) - extras.keys()

    assert not of_blocks(unknown)


def test_python_blocks_compile_and_their_names_exist():
    def unknown(block):
        if block.language == "python":
            tree = ast.parse(block.text)
            known: dict[str, Any] = {}
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    for alias in node.names:
                        yield from _imported(alias.name, None, alias.asname, known)
                elif isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        yield from _imported(node.module, alias.name, alias.asname, known)
            for node in ast.walk(tree):
                yield from _misused(node, known)

    assert not of_blocks(unknown)


def _imported(module: str, name: str | None, alias: str | None, known: dict[str, Any]) -> list[str]:
    top = module.partition(".")[0]
    if f"{top}.py" in FILES_SHOWN:
        return []
    if find_spec(top) is None:
        return [] if top in ELSEWHERE_INSTALLED else [f"no module {module}"]
    try:
        found = import_module(module)
    except MissingExtra:  # test_docs_names.py looks the name up in the source
        return []
    if name is None:
        known[alias or top] = found if alias else import_module(top)
        return []
    if not hasattr(found, name):
        return [f"no {name} in {module}"]
    known[alias or name] = getattr(found, name)
    return []


def _misused(node: ast.AST, known: dict[str, Any]) -> Iterator[str]:
    """Attributes and keyword arguments that an imported thing does not have."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        thing = known.get(node.value.id)
        if thing is not None and not hasattr(thing, node.attr):
            yield f"no {node.attr} in {node.value.id}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
        try:
            parameters = inspect.signature(known[node.func.id]).parameters
        except (TypeError, ValueError):
            return
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            for keyword in node.keywords:
                if keyword.arg is not None and keyword.arg not in parameters:
                    yield f"{node.func.id} takes no {keyword.arg}"


FILES_SHOWN = {block.file for page in PAGES for block in blocks_of(page) if block.file}


def test_the_page_about_algorithms_names_fields_of_the_batch_alone():
    page = (ROOT / "docs" / "tutorials" / "custom.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| \([BT].*\|$", page, re.M)
    described = re.findall(r"\w+", " ".join(rows))
    fields = [field.name for field in dataclasses.fields(TokenBatch)]
    assert len(described) > 6
    assert set(described) <= {*fields, "trained"}


EXAMPLE = """\
<!-- docs-test: shell
touch token
-->
<!-- docs-test: with train steps=1 -->
<!-- docs-test: skip make test, takes minutes -->
```
make test   # all of them
agentgym train \\
  x.yaml
$ is no prompt here
```
```text
output
```
"""


def test_a_page_is_read_into_blocks_with_their_comments():
    hidden, shell, output = read_blocks(EXAMPLE)
    assert hidden.hidden and hidden.commands() == ["touch token"]
    assert shell.appended == (("train", "steps=1"),) and shell.line == 6
    assert shell.why_skipped("make test") == "takes minutes" and not shell.why_skipped("agentgym")
    assert output.language == "text" and output.commands() == []


def test_a_prompted_block_has_only_its_prompted_commands_with_all_their_lines():
    (block,) = read_blocks("```console\n$ curl -d '{\n  1}'\n{\"a\": 1}\n$ cd x\n```\n")
    assert block.commands() == ["curl -d '{\n  1}'", "cd x"]


def test_an_unknown_comment_and_a_reason_that_is_missing_are_errors():
    for note in ("skp, x", "skip", "with train", "exit never"):
        with pytest.raises(ValueError, match=r"docs-test|invalid literal"):
            list(read_blocks(f"<!-- docs-test: {note} -->\n```\nls\n```\n"))


def test_a_command_that_fails_is_reported_with_its_output(tmp_path):
    with Page(tmp_path) as reader:
        reader.run(next(read_blocks("```\ncd examples && x=1\ntest $x = 1 -a -d train\n```\n")))
        with pytest.raises(AssertionError, match="No such file"):
            reader.run(next(read_blocks("```\nls absent && cd examples\n```\n")))
        with pytest.raises(AssertionError, match="ZeroDivisionError"):
            reader.run(next(read_blocks("```python\n1 / 0\n```\n")))
