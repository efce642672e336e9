"""Turns of models that TurnBatch cannot put into one batch: one conversation at a time.

Sliding windows, chunks, recurrent layers, ALiBi and latent attention keep other things than one key
and value per token, so each turn runs alone, with the cache that transformers makes for the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final

import torch
from torch import Tensor

from agentgym_train.engines.hf.batch import FinishedTurn, TurnRequest
from agentgym_train.engines.hf.choice import choose
from agentgym_train.models.positions import layer_kinds
from agentgym_train.models.weights import base_model

_CONTINUES: Final = {"full_attention", "sliding_attention", "chunked_attention", "local"}
"""Kinds of layers whose caches take several further tokens at once."""


@dataclass(slots=True)
class _Row:
    """A running turn."""

    request: TurnRequest
    cache: Any
    logits: Tensor  # (1, V)


@dataclass(frozen=True, slots=True)
class PlainCache:
    """transformers' cache after `length` tokens."""

    cache: Any
    length: int


def has_full_attention(config: Any) -> bool:
    """Whether all layers of a text model attend to all tokens by position, as `TurnBatch` needs."""
    return layer_kinds(config) == {"full_attention"}


class PlainBatch:
    """`TurnBatch` for any model, without a batch: as many forward passes as there are turns."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._rows: list[_Row] = []
        self._continues = layer_kinds(model.config.get_text_config()) <= _CONTINUES
        takes = signature(type(base_model(model)).forward).parameters
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    @property
    def live(self) -> int:
        """Number of running turns."""
        return len(self._rows)

    def accepts(self, waiting: int) -> bool:
        """Whether as many requests as wait should join now."""
        return waiting > 0

    def join(self, requests: Sequence[TurnRequest], caches: Sequence[PlainCache | None]) -> None:
        """Run the new tokens of prompts; `caches` are of proper prefixes of them."""
        for request, kept in zip(requests, caches, strict=True):
            if kept is None:
                logits, cache = self._forward(request.ids, None)
            else:
                logits, cache = self._forward(request.ids[kept.length :], kept.cache)
            self._rows.append(_Row(request, cache, logits))

    def step(self) -> list[FinishedTurn]:
        """Sample a token for each turn; returns the turns that finish with it."""
        finished = []
        for row in self._rows:
            request = row.request
            temperature, draw = request.sampling.temperature, request.draws.getrandbits(63)
            choice = choose(row.logits, [temperature], [draw])
            token = int(choice.tokens)
            request.token_ids.append(token)
            request.logprobs.append(float(choice.logprobs))
            ended = request.left < 1 or token in request.sampling.stop_ids
            request.done = ended or request.reply.cancelled()
            if request.done:
                finished.append(FinishedTurn(request, self._cache_of(row)))
            else:
                ids = [token] if row.cache is not None else request.ids + request.token_ids
                row.logits, row.cache = self._forward(ids, row.cache)
        self._rows = [row for row in self._rows if not row.request.done]
        return finished

    def _cache_of(self, row: _Row) -> PlainCache | None:
        request = row.request
        again = request.conversation is not None and not request.reply.cancelled()
        if not (again and self._continues and row.cache is not None):
            return None
        return PlainCache(row.cache, len(request.cached))

    def _forward(self, ids: Sequence[int], cache: Any) -> tuple[Tensor, Any]:
        """(logits after the last id, the cache; None if the model keeps none)."""
        output = self._model(
            input_ids=torch.tensor([ids], device=self._model.device),
            past_key_values=cache,
            use_cache=True,
            **self._options,
        )
        return output.logits[:, -1], getattr(output, "past_key_values", None)
