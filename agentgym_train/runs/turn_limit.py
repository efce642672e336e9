"""`turn_max_tokens: 0`: the limit from the demonstrations, or of the run that trained the model."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final, TypeVar

from agentgym_train.config.files import local_path
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.data.datasets import read_demonstrations
from agentgym_train.data.formats import has_loss
from agentgym_train.models.loading import load_tokenizer

_Config = TypeVar("_Config", bound=RunConfig)

_LONGEST: Final = 50
"""Responses with the most characters, which are tokenized to find the one with the most tokens."""
_ROOM: Final = 1.5
_MULTIPLE: Final = 8


def with_turn_limit(config: _Config) -> _Config:
    """The config with a number for `turn_max_tokens: 0`; one with a number is returned as it is.

    The longest demonstrated turn and half as much, in multiples of 8; without demonstrations the
    limit of the run that trained the model, and without such a run the default.
    """
    if config.turn_max_tokens:
        return config
    limit = _of_demonstrations(config) or _of_run(config.model) or PolicyConfig().turn_max_tokens
    return replace(config, turn_max_tokens=limit)


def _of_demonstrations(config: RunConfig) -> int:
    data = getattr(config, "data", None)
    if not data:
        return 0
    episodes = read_demonstrations(data)[0].selected
    texts = {turn.response for e in episodes for turn in e.turns if has_loss(turn)}
    longest = sorted(texts, key=lambda text: (len(text), text))[-_LONGEST:]
    if not longest:
        return 0
    tokenizer = load_tokenizer(config.model)
    # The end of the turn is a token of its own.
    most = max(len(ids) for ids in tokenizer(longest, add_special_tokens=False)["input_ids"]) + 1
    return -(-int(most * _ROOM) // _MULTIPLE) * _MULTIPLE


def _of_run(model: str) -> int:
    try:
        run = local_path(model).parent / "run.json"
        found = json.loads(run.read_text(encoding="utf-8"))["config"]["turn_max_tokens"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return found if isinstance(found, int) and found > 0 else 0
