"""TokenRows: what an update trains on, and the input of a model call for some rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from agentgym_train.models.weights import base_model

_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """R rows of tokens of this process, padded on the right to W tokens."""

    ids: Tensor
    """(R, W) int64."""
    lengths: Tensor
    """(R,) int64."""
    trained: Tensor
    """(R, W) bool: the tokens that are scored; never a row's first, which nothing predicts."""
    weights: Tensor | None = None
    """(R, W) weight of each trained token in the loss of the update, over all processes."""
    advantages: Tensor | None = None
    """(R, W)"""
    old: Tensor | None = None
    """(R, W) log-probabilities before the first update; None if there is one update only."""
    reference: Tensor | None = None
    """(R, W) log-probabilities of the reference policy."""
    values: Tensor | None = None
    """(R, W) the critic's values before the update."""
    returns: Tensor | None = None
    """(R, W) the critic's targets."""
    tokens: int | None = None
    """Trained tokens of the update, over all processes."""
    unit: int = 1
    """Consecutive rows that belong together: 2 for pairs."""

    @classmethod
    def from_lists(
        cls,
        ids: Sequence[Sequence[int]],
        masks: Sequence[Sequence[int]],
        device: torch.device,
        unit: int = 1,
    ) -> TokenRows:
        """From R lists of token ids and of masks, 1 where a token is trained."""
        padded = pad_sequence([torch.tensor(row) for row in ids], batch_first=True)  # (R, W)
        trained = pad_sequence([torch.tensor(mask) for mask in masks], batch_first=True).bool()
        trained[:, 0] = False
        lengths = torch.tensor([len(row) for row in ids])
        return cls(
            ids=padded.to(device), trained=trained.to(device), lengths=lengths.to(device), unit=unit
        )

    def take(self, rows: Sequence[int]) -> TokenRows:
        """Some rows, without the padding of longer ones."""
        chosen = torch.tensor(rows, device=self.ids.device)
        width = int(self.lengths[chosen].max())
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        lengths = values.pop("lengths")[chosen]
        own: dict[str, Any] = {
            name: value[chosen, :width] if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        return TokenRows(lengths=lengths, **own)


@dataclass(frozen=True, slots=True)
class Layout:
    """The input of one model call for R rows of W columns, and the positions to score."""

    input_ids: Tensor
    """(R, L) each row's tokens, or (1, N) all rows concatenated."""
    position_ids: Tensor | None
    """(1, N) restarting at every row; None if positions are the columns."""
    predictors: Tensor
    """(S,) index into the flattened `input_ids` of the token before each scored token."""
    labels: Tensor
    """(S,) the scored tokens."""
    scored: Tensor
    """(R, W) bool: the positions of the S scores, in order."""

    @classmethod
    def from_rows(cls, rows: TokenRows, *, shared_rows: bool) -> Layout:
        """The layout of all tokens of R rows.

        Right padding needs no mask, since attention is causal.
        """
        lengths = rows.lengths  # (R,)
        columns = torch.arange(rows.ids.shape[1], device=lengths.device)  # (W,)
        real = columns < lengths[:, None]  # (R, W)
        scored = rows.trained & real & (columns > 0)  # (R, W)
        if shared_rows:
            ids, first = rows.ids[real][None], lengths.cumsum(0) - lengths  # (1, N), (R,)
        else:
            ids = rows.ids[:, : int(lengths.max())]  # (R, L)
            first = torch.arange(len(ids), device=lengths.device) * ids.shape[1]  # (R,)
        flat = first[:, None] + columns  # (R, W)
        return cls(
            input_ids=ids,
            position_ids=columns.expand_as(real)[real][None] if shared_rows else None,
            predictors=flat[scored] - 1,
            labels=rows.ids[scored],
            scored=scored,
        )

    def arguments(self) -> dict[str, Any]:
        """The arguments of a model call.

        Varlen attention gets the boundaries of packed rows, so that it need not find them again in
        each layer.
        """
        positions = self.position_ids
        if positions is None:
            return {"input_ids": self.input_ids}
        starts = (positions[0] == 0).nonzero()[:, 0]  # (R,)
        bounds = torch.cat([starts, starts.new_tensor([positions.shape[1]])]).int()  # (R + 1,)
        longest = int(bounds.diff().max())
        return {
            "input_ids": self.input_ids,
            "position_ids": positions,
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds,
            "max_length_q": longest,
            "max_length_k": longest,
        }

    def spread(self, values: Tensor) -> Tensor:
        """(S,) to (R, W), 0 where nothing is scored."""
        return values.new_zeros(self.scored.shape).masked_scatter(self.scored, values)


def shares_rows(config: Any, stateful: bool) -> bool:
    """Whether several episodes can be packed into one row: this needs varlen attention.

    FlashAttention derives the boundaries of episodes from the position ids. Other kernels would
    need a dense mask over the whole row, and a recurrent layer would leak one episode into the
    next.
    """
    layers = set(getattr(config, "layer_types", None) or ())
    varlen = "flash" in (config._attn_implementation or "")
    return varlen and not stateful and layers <= _ATTENTION_LAYERS


def shares_rows_of(model: Any) -> bool:
    """Whether rows of an unwrapped model can hold several episodes; see `shares_rows`."""
    core = base_model(model)
    return shares_rows(core.config.get_text_config(), bool(core._is_stateful))
