"""KVBatch: the caches of several conversations of unequal length, side by side in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from agentgym_train.engines._dense_attention import mask_for


class _BufferLayer(DynamicLayer):
    """Writes into a buffer made beforehand; growing by `cat` would copy it at each token."""

    is_compileable = False

    def __init__(self, batch: KVBatch, layer: int) -> None:
        super().__init__()
        self._batch = batch
        self._layer = layer
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Write q columns and return all that are filled: (B, H, columns, D) each."""
        start = self._batch.columns
        end = start + key_states.shape[-2]
        keys, values = self._batch.layer_buffer(self._layer, key_states)
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self) -> int:
        """Columns filled before the present forward."""
        return self._batch.columns


class KVBatch:
    """B conversations over shared columns; a row's tokens may have holes, which the mask hides.

    Columns hold, from left to right: what was cached (left-padded to the longest), the new prompt
    tokens (left-padded), and one column a decoded token. Positions count a row's real tokens.
    """

    def __init__(
        self,
        model: Any,
        kept: Sequence[Tensor | None],
        prompts: Sequence[list[int]],
        max_new: int,
        pad_id: int,
    ) -> None:
        """`kept[b]`: (layers, 2, H, n, D) for the first n tokens of `prompts[b]`, or None."""
        self._model = model
        self._device = next(model.parameters()).device
        lengths = [0 if cache is None else cache.shape[3] for cache in kept]
        news = [ids[n:] for ids, n in zip(prompts, lengths, strict=True)]
        past, width = max(lengths), max(len(new) for new in news)
        size = len(prompts)
        self._layers = model.config.get_text_config().num_hidden_layers
        self._capacity = past + width + max_new
        self._real = torch.zeros(size, self._capacity, dtype=torch.bool, device=self._device)
        self._buffer: Tensor | None = None
        self._kept, self._past = kept, past
        self._new = torch.full((size, width), pad_id, device=self._device)  # (B, width)
        for row, (n, new) in enumerate(zip(lengths, news, strict=True)):
            self._real[row, past - n : past] = True
            self._real[row, past + width - len(new) : past + width] = True
            self._new[row, width - len(new) :] = torch.tensor(new, device=self._device)
        self.columns = past
        self._cache = Cache(layers=[_BufferLayer(self, i) for i in range(self._layers)])

    def layer_buffer(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, (B, H, capacity, D) each; made at the first forward."""
        if self._buffer is None:
            size, heads, _, dim = like.shape
            shape = (self._layers, 2, size, heads, self._capacity, dim)
            # Zeros, not empty: a masked column still meets a weight of 0, and 0 * NaN is NaN.
            self._buffer = torch.zeros(shape, dtype=like.dtype, device=like.device)
            for row, cache in enumerate(self._kept):
                if cache is not None:
                    self._buffer[:, :, row, :, self._past - cache.shape[3] : self._past] = cache
        return self._buffer[layer, 0], self._buffer[layer, 1]

    def prefill(self) -> Tensor:
        """Run the new prompt tokens; the logits after each row's last one, (B, V)."""
        return self._forward(self._new)

    def decode(self, tokens: Sequence[int], live: Sequence[bool]) -> Tensor:
        """Run one token a row; rows that are not live leave a hole. Logits (B, V)."""
        self._real[:, self.columns] = torch.tensor(live, device=self._device)
        return self._forward(torch.tensor(tokens, device=self._device)[:, None])

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows only, and without the columns that none of them uses."""
        assert self._buffer is not None  # for the type checker: prefill ran
        chosen = torch.tensor(list(rows), device=self._device)
        real = self._real.index_select(0, chosen)  # (B', capacity)
        first = int(real[:, : self.columns].any(0).nonzero()[0])
        self._real = real[:, first:]
        self._buffer = self._buffer[..., first:, :].index_select(2, chosen)
        self._capacity -= first
        self.columns -= first

    def add(self, other: KVBatch, more: int) -> None:
        """Take the rows of `other` in below one's own, with room for `more` further columns."""
        both = (self, other)
        columns = max(batch.columns for batch in both)
        capacity = columns + more
        size = sum(len(batch._real) for batch in both)
        real = self._real.new_zeros(size, capacity)
        assert self._buffer is not None  # for the type checker: prefill ran
        layers, two, _, heads, _, dim = self._buffer.shape
        buffer = self._buffer.new_zeros(layers, two, size, heads, capacity, dim)
        top = 0
        for batch in both:
            assert batch._buffer is not None  # for the type checker: prefill ran
            rows, filled = (
                slice(top, top + len(batch._real)),
                slice(columns - batch.columns, columns),
            )
            real[rows, filled] = batch._real[:, : batch.columns]
            buffer[:, :, rows, :, filled] = batch._buffer[..., : batch.columns, :]
            top += len(batch._real)
        self._real, self._buffer, self._capacity, self.columns = real, buffer, capacity, columns

    def row(self, row: int, length: int) -> Tensor:
        """The first `length` tokens' cache of one row: (layers, 2, H, length, D)."""
        assert self._buffer is not None  # for the type checker: prefill ran
        columns = self._real[row, : self.columns].nonzero().squeeze(1)[:length]  # (length,)
        return self._buffer[:, :, row].index_select(3, columns)

    def _forward(self, ids: Tensor) -> Tensor:
        """One forward of q columns; (B, V) for the last."""
        q = ids.shape[1]
        end = self.columns + q
        real = self._real[:, :end]  # (B, end)
        causal = torch.ones(q, end, dtype=torch.bool, device=self._device).tril(self.columns)
        itself = torch.eye(q, end, dtype=torch.bool, device=self._device).roll(self.columns, 1)
        # A padded query attends to itself: a row of nothing but masked columns would be NaN.
        mask = (real[:, None, :] & causal) | itself  # (B, q, end)
        positions = (real.cumsum(1) - 1).clamp_(min=0)[:, self.columns :]  # (B, q)
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
