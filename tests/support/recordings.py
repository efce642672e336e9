"""Recorded exchanges of AgentGym's own servers, where they lie beside the checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "data"


def recorded(world: str) -> list[dict[str, Any]]:
    """The exchanges of one world in order; skips the test where there are none."""
    path = FOLDER / f"agentgym-{world}.jsonl"
    if not path.exists():
        pytest.skip(f"there are no recorded exchanges: {path.name} is not beside the checkout")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if "meta" not in row and row["method"] is not None]


def handmade(world: str) -> list[dict[str, Any]]:
    """A shorter set that was made by hand, errors for the most part."""
    path = FOLDER / "agentgym_transcripts.jsonl"
    if not path.exists():
        pytest.skip(f"there are no recorded exchanges: {path.name} is not beside the checkout")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["world"] == world]
