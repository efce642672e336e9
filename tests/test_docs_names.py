"""Files, options, config keys and imports that the documentation names exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from itertools import chain
from pathlib import Path

import typer
import yaml

from agentgym_env.cli.main import _commands, make_app
from agentgym_train.config.learn import AgentEvolConfig, SFTConfig
from agentgym_train.config.old_names import MOVED, REMOVED
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.worlds import World
from doc_blocks import PAGES

ROOT = Path(__file__).parents[1]
TOP = {path.name for path in ROOT.iterdir() if path.is_dir()} | {"agentgym_servers", "host", "web"}
FOLDERS = [
    "", "servers", "servers/agentgym_servers", "servers/agentgym_gateway",
    "servers/agentgym_viewer", "adapters", "agentgym_train",
    "servers/agentgym_servers/worlds/search",
]  # fmt: skip
"""Where a path may begin."""
PACKAGES = [
    "agentgym_env", "agentgym_train", "agentgym_servers", "agentgym_adapters", "agentgym_gateway",
    "agentgym_viewer",
]  # fmt: skip
STILL_USED = {
    "kl", "policy", "trl", "group_size", "gateway", "retries", "compile", "eval_split",
}  # fmt: skip
"""Old names of config keys that are names of other things today."""
READERS_OWN = {
    "my_calculator.py",
    "my_maze.py",
    "test_my_maze.py",
    "group_baseline.py",
    "my_rewards.py",
    "reminder.py",
    "app.py",
}
"""Files that a reader makes, or that another project has."""
MODULES = {path.name for path in ROOT.glob("[!.]*/**/*.py")}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
PATH = re.compile(r"[\w.-]+(/[\w.-]+)+\.(py|md|yaml|toml|tsv|txt|js)|\w+/(\w+/)*")


def keys(*kinds: type) -> set[str]:
    return {field.name for kind in kinds for field in fields(kind)}


CONFIG_KEYS = keys(
    RLConfig, SFTConfig, AgentEvolConfig, import_module("agentgym_train.config.learn").DPOConfig
)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, text) of each fenced block."""
    return ((match[1], match[2]) for match in FENCE.finditer(text))


def inline(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def command_lines(text: str) -> Iterator[list[str]]:
    """The words of each `agentgym` command, in blocks and in running text."""
    joined = "\n".join(block for language, block in blocks(text) if language in ("", "bash"))
    for line in chain(joined.replace("\\\n", " ").splitlines(), inline(text)):
        found = re.search(r"(?:^|/|\$ |&& )agentgym (\S.*)", line)
        if found:
            yield shlex.split(found[1], comments=True)


def anchor(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def of_pages(check) -> list[str]:
    return [
        f"{page.relative_to(ROOT)}: {problem}"
        for page in PAGES
        for problem in check(page, page.read_text(encoding="utf-8"))
    ]


def test_links_and_paths_lead_to_files():
    def missing(page, text):
        for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text)):
            path, _, section = target.partition("#")
            if "://" in path:
                continue
            file = page.parent / path if path else page
            if not file.exists():
                yield target
            elif section:
                headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.M)
                if section not in map(anchor, headings):
                    yield target
        for name in inline(text):
            bare = re.fullmatch(r"\w+\.py", name)
            if bare and name not in READERS_OWN and name not in MODULES:
                yield name
        words = inline(text) + " ".join(map(" ".join, command_lines(text))).split()
        for word in words:
            word = word.split("::")[0]
            if PATH.fullmatch(word) and word.split("/")[0] in TOP:
                places = [ROOT / folder / word for folder in FOLDERS]
                if not any(place.exists() for place in [page.parent / word, *places]):
                    yield word

    assert not of_pages(missing)


def test_commands_and_options_exist():
    commands = {
        name: typer.main.get_command(make_app([name])).commands[name] for name in _commands()
    }
    options = {
        name: {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)} | {"--help"}
        for name, command in commands.items()
    }
    options["train"] |= {f"--{key}" for key in CONFIG_KEYS}

    def unknown(page, text):
        for words in command_lines(text):
            name = words[0].strip(",.")
            if name not in options and not name.startswith("-"):
                yield f"agentgym {name}"
            for word in words[1:]:
                flag = re.match(r"--[a-z][\w-]*", word)
                if flag and flag[0] not in options.get(name, set()):
                    yield f"agentgym {name} {flag[0]}"
                key = re.match(r"([a-z_]+)(\.\w+)*=", word)
                if name == "train" and key and key[1] not in CONFIG_KEYS:
                    yield f"agentgym train {key[0]}"

    assert not of_pages(unknown)


def test_config_keys_exist():
    of_worlds = keys(World)
    known = CONFIG_KEYS | of_worlds

    def unknown(page, text):
        for word in inline(text):
            key = re.match(r"(\w+)(: .+|=.+)?$", word)
            if key and key[1] in (MOVED.keys() | REMOVED.keys()) - STILL_USED:
                yield f"{word}: {key[1]} is now {MOVED.get(key[1], 'gone')}"
        for language, block in blocks(text):
            values = yaml.safe_load(block) if language == "yaml" else None
            if isinstance(values, dict) and isinstance(values.get("servers"), dict):
                continue  # a fleet, which test_docs_blocks reads
            if isinstance(values, dict) and values.keys() & known:
                yield from sorted(values.keys() - known)
                for world in values.get("envs", []):
                    yield from sorted(world.keys() - of_worlds)

    assert not of_pages(unknown)


def defines(name: str) -> bool:
    """Whether a dotted name of ours is a module, or a name that a module of ours contains."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        for folder in ("", "servers", "adapters"):
            path = ROOT.joinpath(folder, *parts[:length])
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            if file.is_file():
                rest = parts[length : length + 1]
                return not rest or bool(re.search(rf"\b{rest[0]}\b", file.read_text("utf-8")))
    return False


def test_python_names_exist():
    def unknown(page, text):
        names = re.findall(rf"\b((?:{'|'.join(PACKAGES)})(?:\.\w+)+)", text)
        for language, block in blocks(text):
            if language == "python":
                for node in ast.walk(ast.parse(block)):
                    if isinstance(node, ast.ImportFrom) and node.module.startswith("agentgym_"):
                        names += [f"{node.module}.{alias.name}" for alias in node.names]
        for module, name in re.findall(r"\b(agentgym_[\w.]+):([A-Z]\w+)", text):
            names.append(f"{module}.{name}")
        yield from (name for name in names if not defines(name))

    assert not of_pages(unknown)


def test_every_test_that_the_threat_model_names_exists():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests/\w+/)?test_\w+\.py)`", text)
    assert len(named) > 15
    missing = [n for n in named if not (ROOT / (n if "/" in n else f"tests/attack/{n}")).is_file()]
    assert not missing
    attacks = {path.name for path in (ROOT / "tests" / "attack").glob("test_*.py")}
    assert attacks <= set(named), "every attack is behind a statement"
