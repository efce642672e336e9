"""Names and texts use the terms and the English that readers of TRL, Gymnasium and vLLM expect."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "agentgym_env", "agentgym_train", "servers/agentgym_servers", "servers/agentgym_gateway",
    "servers/agentgym_viewer", "adapters/agentgym_adapters",
    "examples", "benchmarks", "tools",
)  # fmt: skip
NAMES = {
    "PolicySpec": "who_plays WhoPlays policy_names",
    "Actor, ActorOutput": "Player Move player move",
    "run_episode, EpisodeResult, EpisodeSpec": "attempt Attempt Played EpisodeStart",
    "ContextReset, non-action turn, reflection, response, instruction":
        "Cut asides lesson told Told said say tell",
    "ConcurrencyLimits, Limiter, pause, resume": "traffic Traffic Lane rest flow",
    "RolloutRunner, RolloutBuffer, policy age": "collector stragglers ahead oversampling",
    "sampler, metrics, advantages, microbatches, pack, dummy row, gathered model":
        "step_episodes step_figures credit lay_out filler whole_model",
    "the keys of TRL": "steps_ahead oversample engine_correction tokens_per_forward",
    "EpisodeFilter, ExplorationResult, datasets":
        "sift sifted exploration Found teaching_rows pair_rows kept_tokens run_facts",
    "sft, dpo, local models, preflight, distributed": "imitation preference at_hand ranks",
    "RuleFailed, EpisodeReader, without reward": "Drift Shelf unpaid",
    "codec, session store, partition, listener, protocols, env errors, validation errors":
        "desk keeper shard door neighbours incidents misfits faults",
}  # fmt: skip
PREFIXES = {"min_": "least_", "max_": "most_"}
DOMAINS = {
    # What lies before an agent in a grid, and what it opens.
    "servers/agentgym_servers/worlds/babyai": "ahead door",
    # Nodes next to one another in a page, or vectors in an HNSW graph; the rest of a text.
    "servers/agentgym_servers/web": "rest neighbours",
    "servers/agentgym_servers/worlds": "rest neighbours",
    # What a shop or a forum sells, lists and moves; REST.
    "servers/agentgym_servers/web/sites": "most_commented most_expensive move rest",
    # uvicorn's attribute of a connection.
    "servers/agentgym_servers/host/request_guard.py": "flow",
    # verifiers' config of the policy.
    "adapters/agentgym_adapters/verifiers_v1.py": "player",
    # What passages tell of an entity.
    "tools/generated_world": "told tell",
}
"""Names of a world's domain, or of another library, that are terms there."""
PHRASES = {
    "invalid configs are rejected": r"that cannot be is|which a config without `?method`? is",
    "maximum turns per episode": r"\b[Mm]ost (turns|tokens|episodes) (of|a|at|that)\b",
    "resume": r"\bgo(es)? on (where|with|from)\b|\bTo go on\b|\b(is|was) gone on with\b",
    "is not available": r"\bto be had\b|\bat hand\b",
    "is not valid, invalid":
        r"(?<![Tt]here )\bis no (YAML|JSON|file|folder|config|number)\b"
        r"|\bdoes not fit\b(?! (on|in|into)\b)",
    "per token, per step": r"\ban? (advantage|reward|figure|pass) an? (token|step|turn|row)\b",
    "seed for": r"\"Of (worlds|sampling)\b",
    "expired or unknown": r"\bstood idle\b|\bor never was\b",
    "current": r"\bthe present (step|weights|horizon|policy|one)\b",
    "results": r"\bcame to nothing\b|\bwhat \w+ came to\b",
}  # fmt: skip
CORE = ("agentgym_env", "agentgym_train", "servers/agentgym_gateway", "servers/agentgym_viewer")
SAME = {"make_engine"}
"""What each engine's module has."""
OBSERVATIONS = (
    "The call is no JSON",
    "this is no JSON",
    "The body is no JSON object",
)
"""Texts that policies see: to change them would change what policies are trained on."""


parsed = cache(ast.parse)
"""The tree of a source, which several tests read."""


def sources() -> Iterator[tuple[Path, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


def documents() -> Iterator[tuple[Path, str]]:
    for path in sorted(ROOT.glob("**/*.md")):
        relative = path.relative_to(ROOT)
        # What changed has to name what was there before.
        if not any(part.startswith(".") for part in relative.parts) and path.name != "CHANGELOG.md":
            yield relative, path.read_text(encoding="utf-8")


def defined(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(name, line) of each function, class, argument and attribute, but not of local variables."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
                yield from (
                    (arg.arg, arg.lineno) for arg in ast.walk(node.args) if isinstance(arg, ast.arg)
                )
            case ast.ClassDef():
                yield node.name, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
        if isinstance(node, ast.Module | ast.ClassDef):
            for statement in node.body:
                yield from _assigned(statement)


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, int]]:
    """(name, line) of the attributes that a statement gives to a module or a class."""
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    yield node.id, node.lineno


def replacement(name: str, path: Path) -> str | None:
    """The term for a name, if the name is an old one and none of the domain of the file."""
    bare = name.strip("_")
    for folder, words in DOMAINS.items():
        if path.is_relative_to(folder) and bare in words.split():
            return None
    for new, names in NAMES.items():
        if bare in names.split():
            return new
    return next((f"{new}..." for new, old in PREFIXES.items() if bare.startswith(old)), None)


def objections(line: str) -> Iterator[str]:
    """The plain wordings for the phrases in a line."""
    if not any(text in line for text in OBSERVATIONS):
        yield from (new for new, old in PHRASES.items() if re.search(old, line))


def test_names_are_those_of_the_field():
    found = []
    for path, text in sources():
        for name, line in [(path.stem, 1), *defined(parsed(text))]:
            new = replacement(name, path)
            if new is not None:
                found.append(f"{path}:{line}: {name} -> {new}")
    assert not found, "\n".join(found)


def public_definitions() -> Iterator[tuple[str, str]]:
    """(name, module) of the classes and functions of the core, without the commands."""
    for path, text in sources():
        if path.is_relative_to(path.parts[0] + "/cli") or not any(map(path.is_relative_to, CORE)):
            continue
        for node in parsed(text).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, str(path)


def test_a_public_name_has_one_meaning():
    places: dict[str, list[str]] = {}
    for name, path in public_definitions():
        places.setdefault(name, []).append(path)
    found = {
        name: paths
        for name, paths in places.items()
        if len(paths) > 1 and not name.startswith("_") and name not in SAME
    }
    assert not found, found


def test_constructors_say_what_they_are_made_from():
    found = [
        f"{path}:{node.lineno}"
        for path, text in sources()
        for kind in ast.walk(parsed(text))
        if isinstance(kind, ast.ClassDef)
        for node in kind.body
        if isinstance(node, ast.FunctionDef) and node.name == "of"
    ]
    assert not found, found


def test_texts_are_plain_english():
    found = []
    for path, text in [*sources(), *documents()]:
        for number, line in enumerate(text.splitlines(), 1):
            found += [f"{path}:{number}: {line.strip()[:90]} -> {new}" for new in objections(line)]
    assert not found, "\n".join(found)


def test_definitions_are_checked_and_local_variables_are_not():
    text = "said = 1\nclass Kept:\n    rest: int\n    def go(self, told, *ahead):\n"
    text += "        door, desk = told\n        self._move = [lesson for lesson in door]\n"
    names = [name for name, _ in defined(ast.parse(text))]
    assert sorted(names) == ["Kept", "_move", "ahead", "go", "rest", "said", "self", "told"]


@pytest.mark.parametrize(
    ("name", "path", "old"),
    [
        ("_told", "servers/agentgym_viewer/runs.py", True),
        ("least_reward", "agentgym_train/config/episodes.py", True),
        ("rest", "agentgym_env/client/protocol.py", True),
        ("ahead", "servers/agentgym_servers/worlds/babyai/view.py", False),
        ("ahead", "servers/agentgym_servers/host/app.py", True),
        ("neighbours", "servers/agentgym_servers/web/text_browser/roles.py", False),
        ("almost_done", "agentgym_train/cli/train.py", False),
    ],
)
def test_a_name_is_old_outside_its_domain(name, path, old):
    assert (replacement(name, Path(path)) is not None) is old


@pytest.mark.parametrize(
    ("line", "old"),
    [
        ("A config that cannot be is refused.", True),
        ("run.json is no JSON object", True),
        ("There is no file runs/x", False),
        ("the call does not fit", True),
        ("a model that does not fit on one GPU", False),
        ('return f"The call is no JSON: {error}."', False),
    ],
)
def test_a_phrase_is_found_and_correct_english_is_not(line, old):
    assert bool(list(objections(line))) is old
