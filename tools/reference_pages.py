"""Writes the generated pages of the documentation site: worlds, API, config keys, commands.

Everything comes from the code itself, so that no page can name what does not exist. Sphinx runs
it (docs/conf.py); the pages are not committed.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any, Final

from typer.main import get_command

from agentgym_env.cli.main import SUMMARIES, make_app
from agentgym_env.registry import env_class, registered
from agentgym_train.config.keys import ConfigKey, config_keys, inner_keys
from agentgym_train.config.read import CONFIGS

ROOT: Final = Path(__file__).resolve().parents[1]

PUBLIC: Final = {
    "agentgym_env": "The SDK: environments, clients, wrappers, Gymnasium.",
    "agentgym_train": "The trainer: policies, rollouts, algorithms, evaluation.",
    "agentgym_env.wrappers": "Gymnasium wrappers for rewards and observations.",
    "agentgym_env.errors": "The errors that the packages raise.",
}
"""The packages and modules of the API reference that are imported."""

STATIC: Final = {
    "agentgym_servers": ("servers", "host", "The host that serves environments over HTTP."),
    "agentgym_adapters": ("adapters", "", "Integrations; each needs the library that it is for."),
}
"""Package -> (its folder, the subpackage that is public, summary). They are read, not imported, as
their libraries exclude each other."""

_ORPHAN: Final = "---\norphan: true\n---\n\n"
"""Begins a page that no table of contents needs to have."""
_NOT_SEARCHED: Final = _ORPHAN.replace("---\n\n", "nosearch: true\n---\n\n")
"""The same for a file of the repository that the search of the site leaves out."""
_LINK: Final = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
"""A link to a file."""
_REPEATED: Final = ("README.md", "servers/README.md", "adapters/README.md")
"""Pages of the repository that say briefly what pages of the site say."""
_INDEXED: Final = re.compile(r"^<!-- index: (.*) -->$", re.M)
"""Terms for which the search of the site shows a place first."""
_SENTENCE_END: Final = r"(?<=[.?!])\s+(?=[A-Z`])"
_GENERATED: Final = ("reference", "worlds", "repository")


def write_pages(docs: Path) -> None:
    """Write all generated pages below `docs`: reference/, worlds/ and repository/."""
    for folder in _GENERATED:
        shutil.rmtree(docs / folder, ignore_errors=True)
    _write_worlds(docs / "worlds")
    _write_api(docs / "reference")
    _write_keys(docs / "reference" / "config.md")
    _write_commands(docs / "reference" / "commands.md")
    _write_repository(docs)


def link_outside(_app: Any, document: str, source: list[str]) -> None:
    """Sphinx's `source-read`: point links that leave docs/ at the pages of those files."""
    page = Path("docs") / document
    if not _is_generated(document):
        source[0] = _LINK.sub(lambda link: _rewritten(link, page.parent), source[0])


def _is_generated(document: str) -> bool:
    return document.startswith(tuple(f"{folder}/" for folder in _GENERATED))


def index_entries(_app: Any, _document: str, source: list[str]) -> None:
    """Sphinx's `source-read`: make entries of the index, which the search lists first.

    A comment `<!-- index: learning rate, step size -->` is shown by no viewer of the file itself.
    """
    source[0] = _INDEXED.sub(lambda found: _entries(found[1]), source[0])


def _entries(terms: str) -> str:
    lines = [f"   ! single: {term.strip()}" for term in terms.split(",")]
    return "\n".join(["```{eval-rst}", ".. index::", *lines, "```"])


# Worlds


def _write_worlds(folder: Path) -> None:
    for entry in registered():
        name = entry.env_id.removeprefix("agentgym/").removesuffix("-v0")
        described = inspect.getdoc(env_class(entry.env_id)) or ""
        _write(folder / f"{name}.md", f"# {name}\n\n{described}\n")


# API


def _write_api(folder: Path) -> None:
    parts = ["# Python API", ""]
    for module, summary in PUBLIC.items():
        parts += [f"## {module}", summary, "", "```{toctree}", ":maxdepth: 1", ""]
        for name in public_names(module):
            page = f"{module}.{name}"
            _write(
                folder / "api" / f"{page}.md",
                f"# {name}\n\n```{{eval-rst}}\n.. currentmodule:: {module}\n\n"
                f"{_directive(module, name)}\n```\n",
            )
            parts.append(f"api/{page}")
        parts += ["```", ""]
    for package, (where, below, summary) in STATIC.items():
        parts += [f"## {package}", summary, "", "```{toctree}", ":maxdepth: 1", ""]
        for file in sorted((ROOT / where / package / below).glob("*.py")):
            page = _static_page(file, file.relative_to(ROOT / where))
            if page and not file.name.startswith("_"):
                name = ".".join(file.relative_to(ROOT / where).with_suffix("").parts)
                _write(folder / "api" / f"{name}.md", page)
                parts.append(f"api/{name}")
        parts += ["```", ""]
    _write(folder / "api.md", "\n".join(parts))


def _static_page(file: Path, shown: Path) -> str:
    """The docstrings and signatures of a module's public classes and functions."""
    tree = ast.parse(file.read_text())
    module = ".".join(shown.with_suffix("").parts)
    parts = [f"# {module}", "", ast.get_docstring(tree) or "", ""]
    definitions = [node for node in tree.body if isinstance(node, _DEFINITIONS)]
    for node in (node for node in definitions if not node.name.startswith("_")):
        parts += _static_entry(node, module, 4)
    return "\n".join(parts) if len(parts) > 4 else ""


_DEFINITIONS: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _static_entry(node: Any, module: str, fence: int) -> list[str]:
    kind = "class" if isinstance(node, ast.ClassDef) else "function"
    signature = "" if kind == "class" else f"({ast.unparse(node.args)})"
    lines = [f"{':' * fence}{{py:{kind}}} {module}.{node.name}{signature}", ""]
    lines += [ast.get_docstring(node) or "", ""]
    return [*lines, ":" * fence, ""]


def public_names(module: str) -> list[str]:
    """The names that a module makes public: its `__all__`, or what it defines."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module
    ]
    return sorted(names)


def _directive(module: str, name: str) -> str:
    thing = getattr(importlib.import_module(module), name)
    kind = "autoclass" if inspect.isclass(thing) else "autofunction"
    return f".. {kind}:: {name}"


# Config keys


def _write_keys(file: Path) -> None:
    parts = [
        "# Config keys",
        "",
        "Each key of a YAML file is also an option of `agentgym train`.",
        "",
    ]
    for method, config in CONFIGS.items():
        parts += [f"## {method}", "", (inspect.getdoc(config) or "").split("\n")[0], ""]
        for key in config_keys(method):
            parts += _key(key)
            inner = inner_keys(method, key.name)
            parts += [line for each in inner for line in _key(each, f"{key.name}.")]
    _write(file, "\n".join(parts))


def _key(key: ConfigKey, before: str = "") -> list[str]:
    default = key.default if key.default == "required" else f"default `{key.default}`"
    return [f"`{before}{key.name}`: {key.type}, {default}", f": {key.about}", ""]


# Commands


def _write_commands(file: Path) -> None:
    parts = ["# Commands", ""]
    for name in SUMMARIES:
        command = get_command(make_app([name])).commands[name]  # type: ignore[attr-defined]
        text = inspect.cleandoc(command.help or "").replace("\f", "")
        parts += [f"## agentgym {name}", "", text, ""]
        for option in command.params:
            if option.name == "help":
                continue
            spelled = ", ".join([*option.opts, *option.secondary_opts])
            if option.param_type_name == "argument":
                spelled = (option.metavar or option.name or "").upper()
            described = getattr(option, "help", None) or ""
            parts += [f"`{spelled}`", f": {described}", ""]
    _write(file, "\n".join(parts))


# Files outside docs/ that the pages refer to


def _write_repository(docs: Path) -> None:
    waiting = [
        link
        for page in [*docs.glob("*.md"), *docs.glob("tutorials/*.md"), *docs.glob("notes/*.md")]
        for link in _linked(page.read_text(), Path("docs") / page.parent.relative_to(docs))
    ]
    done: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in done or path.parts[0] == "docs":
            continue
        done.add(path)
        source = ROOT / path
        page = docs / "repository" / _page_of(path)
        if source.suffix == ".md" or source.is_dir():
            text = _text_of(source)
            inside = path.parent if source.is_file() else path
            place = Path("docs") / page.parent.relative_to(docs)
            waiting += _linked(text, inside)
            text = _LINK.sub(partial(_rewritten, inside=inside, page_in=place), text)
            searched = source.suffix == ".md" and path.as_posix() not in _REPEATED
            _write(page, (_ORPHAN if searched else _NOT_SEARCHED) + text)
        else:
            shown = os.path.relpath(source, page.parent)
            _write(page, f"{_NOT_SEARCHED}# {path}\n\n```{{literalinclude}} {shown}\n```\n")


def _text_of(source: Path) -> str:
    if source.is_file():
        return source.read_text()
    if (source / "README.md").exists():
        return (source / "README.md").read_text()
    names = sorted(file.name for file in source.iterdir() if file.suffix in {".py", ".yaml"})
    return f"# {source.relative_to(ROOT)}\n\n" + "\n".join(f"- [{name}]({name})" for name in names)


def _linked(text: str, inside: Path) -> list[Path]:
    """The files that the links of a text in the folder `inside` lead to."""
    return [Path(os.path.relpath(ROOT / inside / link[2], ROOT)) for link in _LINK.finditer(text)]


def _rewritten(link: re.Match[str], inside: Path, page_in: Path | None = None) -> str:
    """The link of a file in `inside`, from its page in `page_in`; both default to one folder."""
    path = Path(os.path.relpath(ROOT / inside / link[2], ROOT))
    if path.parts[0] != "docs":
        path = Path("docs") / "repository" / _page_of(path)
    return f"{link[1]}{os.path.relpath(path, page_in or inside)}{link[3] or ''})"


def _page_of(path: Path) -> Path:
    source = ROOT / path
    if source.is_dir():
        return path / "README.md"
    return path if path.suffix == ".md" else path.with_name(path.name + ".md")


def with_code_blocks(
    _app: Any, _kind: str, _name: str, _thing: Any, _options: Any, lines: list[str]
) -> None:
    """Sphinx's `autodoc-process-docstring`: write Markdown's fenced code as reStructuredText."""
    inside, found = False, []
    for line in lines:
        if line.lstrip().startswith("```"):
            inside = not inside
            found += [".. code-block:: python", ""] if inside else [""]
        else:
            found.append(f"   {line}" if inside else line)
    lines[:] = found


def list_pages(app: Any, _error: Exception | None) -> None:
    """Sphinx's `build-finished`: write llms.txt, with the question that each page answers."""
    docs = Path(app.srcdir)
    lines = [f"# {app.config.project}", ""]
    for page in [*sorted(docs.glob("*.md")), *sorted(docs.glob("*/*.md"))]:
        name = page.relative_to(docs).with_suffix("").as_posix()
        if not _is_generated(name):
            text = re.sub(r"<!--.*?-->\n?", "", page.read_text(), flags=re.S)
            title, _, rest = text.removeprefix("# ").partition("\n")
            begins = " ".join(rest.strip().partition("\n\n")[0].split())
            begins = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", begins)
            lines.append(f"- [{title}]({name}.html): {re.split(_SENTENCE_END, begins)[0]}")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n")


def make_accessible(
    _app: Any, _page: str, _template: str, context: dict[str, Any], _document: Any
) -> None:
    """Sphinx's `html-page-context`: give captions a level, and let keyboards scroll wide blocks."""
    for part in ("furo_navigation_tree", "body"):
        context[part] = (
            context.get(part, "")
            .replace('role="heading">', 'role="heading" aria-level="2">')
            .replace("<pre>", '<pre tabindex="0">')
            .replace('class="table-wrapper ', 'tabindex="0" class="table-wrapper ')
        )


def _write(page: Path, text: str) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text)
