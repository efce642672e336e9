"""Names and texts use the terms and the English that readers of TRL, Gymnasium and vLLM expect."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "agentgym_env", "agentgym_train", "servers/agentgym_servers", "adapters/agentgym_adapters",
    "examples", "benchmarks", "tools",
)  # fmt: skip
NAMES = {
    "PolicySpec": "who_plays WhoPlays policy_names",
    "Actor, ActorOutput": "Player Move player move",
    "run_episode, EpisodeResult, EpisodeSpec": "attempt Attempt Played EpisodeStart",
    "ContextReset, non-action turn, reflection, response, instruction": "Cut asides lesson told",
    "ConcurrencyLimits, Limiter, pause, resume": "traffic Traffic Lane rest flow",
    "RolloutRunner, OversamplingPool, async rollouts": "collector stragglers ahead",
    "sampler, metrics, advantages, microbatches, pack, dummy row, gathered model":
        "step_episodes step_figures credit lay_out filler whole_model",
    "the keys of TRL": "steps_ahead oversample engine_correction tokens_per_forward",
    "EpisodeFilter, ExplorationResult, datasets":
        "sift sifted exploration Found teaching_rows pair_rows kept_tokens run_facts",
    "sft, dpo, local models, preflight, distributed": "imitation preference at_hand ranks",
    "codec, session store, partition, listener, protocols, env errors, validation errors":
        "desk keeper shard door neighbours incidents misfits faults",
}  # fmt: skip
PREFIXES = {"min_": "least_", "max_": "most_"}
PHRASES = {
    "invalid configs are rejected": r"that cannot be is|which a config without `?method`? is",
    "maximum turns per episode": r"\b[Mm]ost (turns|tokens|episodes) (of|a|at|that)\b",
    "resume": r"\bgo(es)? on (where|with|from)\b|\bTo go on\b|\b(is|was) gone on with\b",
    "is not available": r"\bto be had\b|\bat hand\b",
    "is not valid, invalid": r"\bis no (YAML|JSON|file|folder|config|number)\b|\bdoes not fit\b",
    "per token, per step": r"\ban? (advantage|reward|figure|pass) an? (token|step|turn|row)\b",
    "seed for": r"\"Of (worlds|sampling)\b",
    "expired or unknown": r"\bstood idle\b|\bor never was\b",
    "current": r"\bthe present (step|weights|horizon|policy|one)\b",
    "results": r"\bcame to nothing\b|\bwhat \w+ came to\b",
}
OLD_KEYS = ROOT / "agentgym_train" / "config" / "reading.py"
"""The one place that may contain old names: it rejects them."""


def sources() -> Iterator[tuple[Path, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path != OLD_KEYS:
                yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


def documents() -> Iterator[tuple[Path, str]]:
    for path in sorted(ROOT.glob("**/*.md")):
        relative = path.relative_to(ROOT)
        # What changed has to name what was there before.
        if not any(part.startswith(".") for part in relative.parts) and path.name != "CHANGELOG.md":
            yield relative, path.read_text(encoding="utf-8")


def defined(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(name, line) of every name that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def test_names_are_those_of_the_field():
    instead = {old: new for new, names in NAMES.items() for old in names.split()}
    found = []
    for path, text in sources():
        if path.stem in instead:
            found.append(f"{path}: {path.stem} -> {instead[path.stem]}")
        for name, line in defined(ast.parse(text)):
            bare = name.strip("_")
            if bare in instead:
                found.append(f"{path}:{line}: {name} -> {instead[bare]}")
            for new, old in PREFIXES.items():
                if bare.startswith(old) and bare != "most_common":
                    found.append(f"{path}:{line}: {name} -> {new}...")
    assert not found, "\n".join(found)


def test_texts_are_plain_english():
    found = []
    for path, text in [*sources(), *documents()]:
        for number, line in enumerate(text.splitlines(), 1):
            for new, old in PHRASES.items():
                if re.search(old, line):
                    found.append(f"{path}:{number}: {line.strip()[:90]} -> {new}")
    assert not found, "\n".join(found)
