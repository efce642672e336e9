"""The running turns of HFEngine in one batch, which they join and leave one by one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agentgym_train.engines.base import Generation, Sampling
from agentgym_train.engines.hf.choice import choose
from agentgym_train.engines.hf.graph import StaticSteps
from agentgym_train.engines.hf.kv_batch import KVBatch
from agentgym_train.models.positions import like_lengths, pass_cost_of

_JOIN_EVERY = 8
"""Steps before a few requests may join, because all rows wait for their prompts."""


@dataclass(slots=True, eq=False)
class TurnRequest:
    """A requested turn, and its tokens so far."""

    ids: list[int]
    sampling: Sampling
    conversation: Hashable | None
    reply: asyncio.Future[Generation]
    token_ids: list[int] = field(init=False)
    logprobs: list[float] = field(init=False)
    done: bool = field(init=False)
    draws: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin anew, with the same draws."""
        self.token_ids, self.logprobs, self.done = [], [], False
        self.draws = random.Random(self.sampling.seed)

    @property
    def left(self) -> int:
        """Maximum number of further tokens."""
        return self.sampling.max_tokens - len(self.token_ids)

    @property
    def cached(self) -> list[int]:
        """The ids in its cache; the last sampled one did not run through the model."""
        return (self.ids + self.token_ids)[:-1]


@dataclass(frozen=True, slots=True)
class FinishedTurn:
    """A turn that is finished or cancelled."""

    request: TurnRequest
    cache: Any
    """(layers, 2, H, n, D) of the n ids in `request.cached`, or a `PlainCache`; None if no turn
    follows."""


class TurnBatch:
    """B running turns; each step samples one token of each. Not thread-safe."""

    def __init__(
        self,
        model: Any,
        pad_id: int,
        *,
        settle_ties: bool = False,
        static: StaticSteps | None = None,
    ) -> None:
        """`settle_ties`: see `HFSettings`; `static` is for its `cuda_graphs`."""
        self._model = model
        self._static = static
        self._settles = settle_ties
        self._pad_id = pad_id
        self._pass_cost = pass_cost_of(model)
        self._rows: list[TurnRequest] = []
        self._kv: KVBatch | None = None
        self._logits = torch.empty(0)  # (B, V) after each row's last token
        self._steps = 0

    @property
    def live(self) -> int:
        """Number of running turns."""
        return sum(not request.done for request in self._rows)

    def accepts(self, waiting: int) -> bool:
        """Whether as many requests as wait should join now."""
        return waiting > 0 and (self._steps >= _JOIN_EVERY or waiting >= self.live)

    def join(self, requests: Sequence[TurnRequest], caches: Sequence[Tensor | None]) -> None:
        """Run the new tokens of prompts; `caches` are of proper prefixes of them.

        New conversations and those that go on have unequal numbers of new tokens, so they are
        padded to several lengths.
        """
        first, row_of = _distinct(requests, caches)
        cached = [0 if (cache := caches[row]) is None else cache.shape[3] for row in first]
        news = [len(requests[row].ids) - n for row, n in zip(first, cached, strict=True)]
        columns = max(len(r.ids) for r in requests) + max(r.left for r in requests)
        # For all groups at once, and for turns that join later, whose prompts are longer.
        room = (len(requests), columns + columns // 4)
        for group in like_lengths(news, self._pass_cost):
            # Sorted, distinct prompts are in the order in which the requests first have them.
            together = sorted(group)
            place = {distinct: n for n, distinct in enumerate(together)}
            members = [row for row, distinct in enumerate(row_of) if distinct in place]
            self._join(
                [requests[row] for row in members],
                [requests[first[distinct]].ids for distinct in together],
                [caches[first[distinct]] for distinct in together],
                [place[row_of[row]] for row in members],
                room,
            )

    def _join(
        self,
        requests: Sequence[TurnRequest],
        prompts: Sequence[list[int]],
        caches: Sequence[Tensor | None],
        prompt_of: Sequence[int],
        room: tuple[int, int],
    ) -> None:
        """Run the new tokens of distinct `prompts`; `prompt_of` says which each request shares.

        If no other turn runs, they begin in a buffer with this `room` (rows, columns).
        """
        longest = max(request.left for request in requests)
        kv = self._kv if self.live else None
        room = room if kv is None else (len(requests), 0)
        fresh = KVBatch(self._model, caches, prompts, longest, self._pad_id, room)
        logits = fresh.prefill()  # (distinct prompts, V)
        if len(prompts) < len(requests):
            fresh.repeat(prompt_of)
            logits = logits[prompt_of]  # (new rows, V)
        self._steps = 0
        if kv is None:
            self._rows, self._kv, self._logits = list(requests), fresh, logits
            return
        done = [row for row, request in enumerate(self._rows) if request.done]
        more = max(longest, *(r.left for r in self._rows if not r.done))
        places = kv.add(fresh, done, more)
        if self._static is not None:
            self._static.release(kv._filled)
        added = len(self._rows)
        self._rows += requests[: kv.size - added]
        for place, request in zip(places, requests, strict=True):
            self._rows[place] = request
        both = logits.new_zeros(len(self._rows), logits.shape[1])  # (B, V)
        both[:added] = self._logits
        both[places] = logits
        self._logits = both

    def step(self) -> list[FinishedTurn]:
        """Sample a token for each turn; returns the turns that finish with it."""
        assert self._kv is not None  # for the type checker: somebody joined
        before = [row for row, request in enumerate(self._rows) if not request.done]
        tokens = self._sample()  # (B,)
        finished = []
        for row in before:
            request = self._rows[row]
            request.done = request.done or request.reply.cancelled()
            if request.done:
                finished.append(FinishedTurn(request, self._cache_of(row)))
        live = [row for row, request in enumerate(self._rows) if not request.done]
        if not live:
            self._rows, self._kv = [], None
            return finished
        if len(live) <= len(self._rows) * 3 // 4:
            # Finished rows cost as much as live ones, and turns differ in length.
            order = self._kv.keep(live)
            self._rows = [self._rows[row] for row in order]
            tokens = [tokens[row] for row in order]
        self._logits = self._kv.decode(
            tokens, [not r.done for r in self._rows], self._static
        )  # (B, V)
        self._steps += 1
        return finished

    def _sample(self) -> list[int]:
        """One token per live row: by the row's own draw, or the most likely."""
        rows = self._rows
        temperatures = [request.sampling.temperature for request in rows]
        draws = [request.draws.getrandbits(63) for request in rows]
        choice = choose(self._logits, temperatures, draws)
        ids: list[int] = choice.tokens.tolist()
        logprobs: list[float] = choice.logprobs.tolist()
        if self._settles:
            for row in choice.is_near.nonzero().squeeze(1).tolist():
                if not rows[row].done:
                    alone = choose(self._alone(rows[row]), temperatures[row:][:1], draws[row:][:1])
                    ids[row], logprobs[row] = int(alone.tokens), float(alone.logprobs)
        for request, token, logprob in zip(rows, ids, logprobs, strict=True):
            if request.done:
                continue
            request.token_ids.append(token)
            request.logprobs.append(logprob)
            request.done = request.left < 1 or token in request.sampling.stop_ids
        return ids

    def _alone(self, request: TurnRequest) -> Tensor:
        """The logits after one conversation, computed alone from its first token: (1, V)."""
        ids = torch.tensor([request.ids + request.token_ids], device=self._model.device)
        output = self._model(input_ids=ids, use_cache=False, logits_to_keep=1)
        logits: Tensor = output.logits[:, -1]
        return logits

    def _cache_of(self, row: int) -> Tensor | None:
        request = self._rows[row]
        if self._kv is None or request.conversation is None or request.reply.cancelled():
            return None
        return self._kv.row(row, len(request.cached))


def _distinct(
    requests: Sequence[TurnRequest], caches: Sequence[Tensor | None]
) -> tuple[list[int], list[int]]:
    """(the first request of each distinct prompt, which of those each of the requests shares).

    The members of a group have the same first prompt, which runs through the model once.
    """
    index: dict[Hashable, int] = {}
    first: list[int] = []
    row_of: list[int] = []
    for row, (request, cache) in enumerate(zip(requests, caches, strict=True)):
        key: Hashable = tuple(request.ids) if cache is None else row
        if key not in index:
            index[key] = len(first)
            first.append(row)
        row_of.append(index[key])
    return first, row_of
