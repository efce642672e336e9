"""KV caches of unequal length side by side, in one buffer; knows nothing about turns."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from agentgym_train.engines.hf.contexts import mask_for
from agentgym_train.engines.hf.graph import StaticSteps


class _BufferLayer(DynamicLayer):
    """Writes into an allocated buffer; growing by `cat` would copy it at each token."""

    is_compileable = False

    def __init__(self, batch: KVBatch, layer: int) -> None:
        super().__init__()
        # The batch refers to its layers: a cycle would keep its buffer until a garbage collection.
        self._batch: KVBatch = weakref.proxy(batch)
        self._layer = layer
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Write q columns and return all that are filled: (B, H, columns, D) each."""
        first, start = self._batch.first, self._batch.columns
        end = start + key_states.shape[-2]
        keys, values = self._batch.layer_buffer(self._layer, key_states)
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        return keys[:, :, first:end], values[:, :, first:end]

    def get_seq_length(self) -> int:
        """Columns filled before the current forward."""
        return self._batch.columns - self._batch.first


class KVBatch:
    """B conversations over shared columns; a row may have gaps, which the mask hides.

    Columns contain, from left to right: cached tokens (left-padded to the longest), new prompt
    tokens (left-padded), and one column per decoded token. Positions count a row's real tokens.

    The buffer has spare rows and columns, so that turns join and leave without copies of the
    others. In use are the first `size` rows and the columns from `first` to `columns`.
    """

    def __init__(
        self,
        model: Any,
        caches: Sequence[Tensor | None],
        prompts: Sequence[list[int]],
        max_new: int,
        pad_id: int,
        room: tuple[int, int] = (0, 0),
    ) -> None:
        """`caches[b]`: (layers, 2, H, n, D) for the first n tokens of `prompts[b]`, or None.

        The buffer has at least `room`: (rows, columns).
        """
        self._model = model
        self._device = next(model.parameters()).device
        lengths = [0 if cache is None else cache.shape[3] for cache in caches]
        news = [ids[n:] for ids, n in zip(prompts, lengths, strict=True)]
        past, width = max(lengths), max(len(new) for new in news)
        size = len(prompts)
        self._layers = model.config.get_text_config().num_hidden_layers
        self._capacity = max(past + width + max_new, room[1])
        rows = max(size, room[0])
        self._real = torch.zeros(rows, self._capacity, dtype=torch.bool, device=self._device)
        self._buffer: Tensor | None = None
        self.size, self.first = size, 0
        self._cached, self._past = caches, past
        self._new = torch.full((size, width), pad_id, device=self._device)  # (B, width)
        for row, (n, new) in enumerate(zip(lengths, news, strict=True)):
            self._real[row, past - n : past] = True
            self._real[row, past + width - len(new) : past + width] = True
            self._new[row, width - len(new) :] = torch.tensor(new, device=self._device)
        self.columns = past
        self._cache = Cache(layers=[_BufferLayer(self, i) for i in range(self._layers)])

    def layer_buffer(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, (size, H, capacity, D) each, made at the first forward."""
        if self._buffer is None:
            _, heads, _, dim = like.shape
            shape = (self._layers, 2, len(self._real), heads, self._capacity, dim)
            kind, dtype = like.device.type, like.dtype
            if torch.is_autocast_enabled(kind):
                # Rotary embeddings return float32; attention would convert it at each token.
                dtype = torch.get_autocast_dtype(kind)
            # Zeros, not empty: a masked column still meets a weight of 0, and 0 * NaN is NaN.
            self._buffer = torch.zeros(shape, dtype=dtype, device=like.device)
            for row, cache in enumerate(self._cached):
                if cache is not None:
                    self._buffer[:, :, row, :, self._past - cache.shape[3] : self._past] = cache
            self._cached = ()  # copied: the batch outlives them
        return self._buffer[layer, 0, : self.size], self._buffer[layer, 1, : self.size]

    def prefill(self) -> Tensor:
        """Run the new prompt tokens; the logits after each row's last one, (B, V)."""
        return self._forward(self._new)

    def decode(
        self, tokens: Sequence[int], live: Sequence[bool], steps: StaticSteps | None = None
    ) -> Tensor:
        """Run one token per row; rows that are not live leave a gap. Logits (B, V).

        `steps` runs them in one shape.
        """
        self._real[: self.size, self.columns] = torch.tensor(live, device=self._device)
        ids = torch.tensor(tokens, device=self._device)  # (B,)
        if steps is not None:
            visible = partial(mask_for, self._model)
            logits = steps.decode(
                self._model, self._filled, visible, ids, self._real, self.columns
            )  # (rows, V)
            if logits is not None:
                self.columns += 1
                return logits[: self.size]
        return self._forward(ids[:, None])

    def repeat(self, rows: Sequence[int]) -> None:
        """Replace the rows by copies of these, for which the buffer has room."""
        chosen = torch.tensor(list(rows), device=self._device)
        self.size = len(rows)
        used = slice(self.first, self.columns)
        self._real[: self.size] = self._real[chosen]
        for layer in self._filled:  # layer by layer: a copy of less
            layer[:, : self.size, :, used] = layer[:, chosen, :, used]

    def keep(self, live: Sequence[int]) -> list[int]:
        """Keep these rows only, the last ones in the places of others; returns their new order."""
        size = len(live)
        movers = [row for row in live if row >= size]
        holes = sorted(set(range(size)).difference(live))
        if movers:
            used = slice(self.first, self.columns)
            self._filled[:, :, holes, :, used] = self._filled[:, :, movers, :, used]
            self._real[holes] = self._real[movers]
        self.size = size
        moved = dict(zip(holes, movers, strict=True))
        return [moved.get(row, row) for row in range(size)]

    def add(self, other: KVBatch, free: Sequence[int], more: int) -> list[int]:
        """Copy the rows of `other` to the rows `free` and then behind the last; their places.

        There is room for `more` further columns afterwards.
        """
        self._real[list(free)] = False
        rows, width = other.size, other.columns - other.first
        places = [*free, *range(self.size, self.size + rows)][:rows]
        used = self._real[: self.size, : self.columns].any(0).nonzero()
        self.first = int(used[0]) if len(used) else self.columns
        size = max(self.size, *(place + 1 for place in places))
        window = max(self.columns - self.first, width)
        fits = self.columns >= window and self.columns + more <= self._capacity
        if not fits or size > len(self._real):
            self._make_room(size, window, more)
        self.first, self.size = self.columns - window, size
        filled = slice(self.columns - width, self.columns)
        theirs = slice(other.first, other.columns)
        self._real[places] = False
        self._real[places, filled] = other._real[: other.size, theirs]
        self._filled[:, :, places, :, filled] = other._filled[:, :, : other.size, :, theirs]
        return places

    def _make_room(self, size: int, window: int, more: int) -> None:
        """Move what is in use to the first `window` columns, in a larger buffer if need be."""
        before = slice(self.first, self.columns)
        after = slice(window - (self.columns - self.first), window)
        old, real = self._filled, self._real
        if size > len(real) or window + more > self._capacity:
            rows = len(real) if size <= len(real) else size + size // 4
            self._capacity = window + more + window // 4
            layers, two, _, heads, _, dim = old.shape
            self._buffer = old.new_zeros(layers, two, rows, heads, self._capacity, dim)
        self._real = real.new_zeros(self._filled.shape[2], self._capacity)
        self._real[: self.size, after] = real[: self.size, before]
        for source, target in zip(old, self._filled, strict=True):  # layer by layer: they overlap
            target[:, : self.size, :, after] = source[:, : self.size, :, before].clone()
        self.columns = window

    @property
    def _filled(self) -> Tensor:
        """(layers, 2, rows, H, capacity, D)."""
        assert self._buffer is not None  # for the type checker: prefill ran
        return self._buffer

    def row(self, row: int, length: int) -> Tensor:
        """The first `length` tokens' cache of one row: (layers, 2, H, length, D)."""
        columns = self._real[row, : self.columns].nonzero().squeeze(1)[:length]  # (length,)
        return self._filled[:, :, row].index_select(3, columns)

    def _forward(self, ids: Tensor) -> Tensor:
        """One forward of q columns; (B, V) for the last."""
        q = ids.shape[1]
        end, past = self.columns + q, self.columns - self.first
        real = self._real[: self.size, self.first : end]  # (B, past + q)
        causal = torch.ones(q, past + q, dtype=torch.bool, device=self._device).tril(past)
        itself = torch.eye(q, past + q, dtype=torch.bool, device=self._device).roll(past, 1)
        # A padded query attends to itself, because a fully masked row would be NaN.
        mask = (real[:, None, :] & causal) | itself  # (B, q, past + q)
        positions = (real.cumsum(1) - 1).clamp_(min=0)[:, past:]  # (B, q)
        output = self._model(
            input_ids=ids,
            attention_mask=mask_for(self._model, mask[:, None]),
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self.columns = end
        logits: Tensor = output.logits[:, -1]  # (B, V)
        return logits
