"""The smallest policy that is still a real transformer, for tests of everything around it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from agentgym_servers.worlds.textcraft.env import TextCraft
from examples.small_models import small_policy, small_tokenizer


@cache
def textcraft_tokenizer() -> Any:
    """A tokenizer of TextCraft's words."""
    env = TextCraft()
    texts = [env.reset(seed=0, options={"task": t})[0] for t in env.tasks.split("train")[:60]]
    return small_tokenizer([*texts, "user assistant system Got inventory Crafted"], 400)


def tiny_model(seed: int = 0) -> Any:
    """Two layers of width 32, new at every call."""
    return small_policy(textcraft_tokenizer(), layers=2, hidden=32, heads=1, seed=seed).eval()


def save_tiny_policy(folder: Any, seed: int = 0) -> str:
    """A folder that `load_policy` reads."""
    tiny_model(seed).save_pretrained(folder)
    textcraft_tokenizer().save_pretrained(folder)
    return str(folder)


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes, where a mapping such as `eval` changes some of its keys."""
    inner = {
        key: {**values[key], **change}
        for key, change in changes.items()
        if isinstance(change, Mapping) and isinstance(values.get(key), Mapping)
    }
    return {**values, **changes, **inner}
