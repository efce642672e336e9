"""The batch of HFEngine: KV caches of unequal length side by side."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentgym_train.engines.base import Generation, Sampling
from agentgym_train.engines.hf.graph import StaticSteps
from agentgym_train.models.adapters import head_of
from agentgym_train.models.padding import like_lengths, pass_cost_of

_ALIBI_ALWAYS = ("bloom", "mpt")


def has_full_attention(config: Any) -> bool:
    """Whether all layers of a text model attend to all tokens by position, as `TurnBatch` needs."""
    return layer_kinds(config) == {"full_attention"}


def layer_kinds(config: Any) -> set[str]:
    """The kinds of a text model's layers, by transformers' names."""
    found = set(getattr(config, "layer_types", None) or _kinds_unnamed(config))
    if getattr(config, "alibi", False) or config.model_type in _ALIBI_ALWAYS:
        found.add("alibi")
    if getattr(config, "kv_lora_rank", None):
        found.add("latent_attention")
    return found


def _kinds_unnamed(config: Any) -> list[str]:
    """The kinds of a config without `layer_types`: GPT-Neo has its own key, Mistral a window."""
    layers: list[str] = getattr(config, "attention_layers", None) or []
    if layers:
        return ["full_attention" if kind == "global" else kind for kind in layers]
    used = getattr(config, "use_sliding_window", True)
    window = getattr(config, "sliding_window", None) if used else None
    narrow = window is not None and window < config.max_position_embeddings
    return ["sliding_attention" if narrow else "full_attention"]


NEAR: Final = 2e-4
"""A choice is near another if a change of this size of the difference of two logits changes it. In
float32, other rows of a batch change them by about 1e-5."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One token for each of B rows."""

    tokens: Tensor  # (B,)
    logprobs: Tensor  # (B,) of the tokens, after the temperature
    is_near: Tensor  # (B,) whether rounding may change it


def choose(logits: Tensor, temperatures: list[float], draws: list[int]) -> Choice:
    """By the Gumbel-max trick with each row's own draw, or the most likely at temperature 0.

    `logits` are (B, V); a draw has 63 random bits. Whatever the distribution, few choices are near:
    with probabilities p, on average NEAR times the sum of p (1 - p) of them at a temperature of 1,
    and more below, where changes of logits weigh more. By inverse CDF, all would be where each
    token is unlikely. Tokens with probabilities below 1e-9 are drawn somewhat too rarely.
    """
    device = logits.device
    divisor = torch.tensor([t or 1.0 for t in temperatures], device=device)  # (B,)
    logprobs = torch.log_softmax(logits.float() / divisor[:, None], dim=-1)  # (B, V)
    scores = logprobs  # (B, V)
    if any(temperatures):
        # -log(E) of an exponential variable E = -log(1 - u) is a Gumbel variable.
        noise = _uniform(draws, logits.shape[-1], device).neg_().log1p_().neg_().log_()  # (B, V)
        noise[torch.tensor([t == 0 for t in temperatures], device=device)] = 0
        scores = torch.sub(logprobs, noise, out=noise)
    best, tokens = scores.topk(2, dim=-1)  # (B, 2)
    chosen = logprobs.gather(1, tokens[:, :1]).squeeze(1)  # (B,)
    is_near = (best[:, 0] - best[:, 1]) * divisor.clamp(max=1) < NEAR  # (B,)
    return Choice(tokens[:, 0], chosen, is_near)


_OFFSETS: Final = 1 << 20
"""Places of the table of random bits where the noise of a draw may begin."""


@lru_cache(maxsize=4)
def _random_bits(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two tables of `size` + _OFFSETS int32, the same on every device and in every process.

    A larger size adds to their ends, so tokens that pad a vocabulary change no other.
    """
    count = 4 * (size + _OFFSETS)
    tables = [bytearray(random.Random(seed).randbytes(count)) for seed in (0, 1)]
    first, second = (torch.frombuffer(table, dtype=torch.int32) for table in tables)
    return first.to(device), second.to(device)


def _uniform(draws: list[int], size: int, device: torch.device) -> Tensor:
    """(B, size) float32 in (0, 1), which depend on each row's draw alone.

    Two stretches of random bits, whose places are 20 bits of the draw each, are combined with each
    other and with its remaining 23 bits. A generator of its own for each row would cost more than
    all the rest of a choice.
    """
    mask = _OFFSETS - 1
    places = torch.tensor([[d & mask, d >> 20 & mask] for d in draws], device=device)  # (B, 2)
    high = torch.tensor([d >> 40 << 8 for d in draws], dtype=torch.int32, device=device)  # (B,)
    first, second = _random_bits(size, device)
    bits = first.unfold(0, size, 1)[places[:, 0]]  # (B, size)
    bits ^= second.unfold(0, size, 1)[places[:, 1]]
    bits ^= high[:, None]
    bits &= 0x7FFFFFFF
    # Large values would round to 1, whose noise excludes the token however likely it is.
    return bits.float().add_(0.5).mul_(2.0**-31).clamp_(max=1 - 2.0**-24)


GROUPED: Final = "agentgym_grouped"


@contextmanager
def dense_attention(model: Any) -> Iterator[None]:
    """Within, a model attends under any mask; varlen kernels know no rows with holes."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    if before != "eager" and model._can_set_attn_implementation():
        # A model without sdpa support has parts in its attention that sdpa would omit.
        config._attn_implementation = GROUPED if model._supports_sdpa else "eager"
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def float32_head(model: Any) -> Iterator[None]:
    """Within, the LM head returns float32 logits that were never rounded to 16 bits.

    Rounded logits of a bfloat16 model differ by up to 0.06 at a value of 16, so many tokens would
    share one probability.
    """
    head = head_of(model)
    if type(head) is not nn.Linear:
        yield
        return

    def forward(hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return _float32_linear(hidden, head.weight, head.bias)

    head.forward = forward  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        del head.forward


Copies = dict[nn.Module, tuple[Tensor, Tensor | None]]
"""Weight and bias of linear layers, in the precision that is used for computing."""


@contextmanager
def reduced_weights(model: Any, dtype: torch.dtype, copies: Copies) -> Iterator[None]:
    """Within, linear layers other than the LM head use copies of their float32 weights in `dtype`.

    Autocast would convert all weights at each token, with the same result: in inference mode it
    keeps no copies. `copies` is filled where it is empty, and valid until the weights change.
    """
    head = head_of(model)
    changed = []
    try:
        for module in model.modules():
            # A parameter of another type is a part of a sharded weight.
            ordinary = type(module) is nn.Linear and type(module.weight) is nn.Parameter
            if not ordinary or module is head or "forward" in vars(module):
                continue
            if module.weight.dtype != torch.float32:
                continue
            if module not in copies:
                bias = None if module.bias is None else module.bias.detach().to(dtype)
                copies[module] = module.weight.detach().to(dtype), bias
            weight, bias = copies[module]
            module.forward = partial(linear, weight=weight, bias=bias)  # type: ignore[method-assign]
            changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward


_TILE = 8192
"""Rows of the head that are converted at a time."""


def _float32_linear(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(..., V) float32 logits of (..., H) hidden states."""
    flat = hidden.flatten(0, -2)  # (N, H)
    if weight.device.type == "cuda" and weight.dtype != torch.float32:
        logits = torch.mm(flat.to(weight.dtype), weight.t(), out_dtype=torch.float32)  # (N, V)
    else:
        parts = weight.split(weight.shape[0] if weight.dtype == torch.float32 else _TILE)
        logits = torch.cat([flat.float() @ part.float().t() for part in parts], 1)  # (N, V)
    if bias is not None:
        logits = logits + bias.float()
    return logits.unflatten(0, hidden.shape[:-1])


def mask_for(model: Any, visible: Tensor) -> Tensor:
    """`visible`, (B, 1, q, n) bool, in the form that the attention expects; eager adds it."""
    if model.config.get_text_config()._attn_implementation != "eager":
        return visible
    hidden = torch.finfo(torch.float32).min
    return torch.zeros(visible.shape, device=visible.device).masked_fill(~visible, hidden)


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    **further: Any,
) -> tuple[Tensor, None]:
    """Attention of (B, H, q, D) queries to (B, H', n, D) keys and values; (B, q, H, D).

    With one query per head, the H / H' heads that share keys become queries of one head. With more,
    on a CPU, its kernel supports groups. Otherwise transformers' own function is used.
    """
    size, heads, queries, dim = query.shape
    grouped = heads != key.shape[1] and attention_mask is not None
    if not grouped or (queries > 1 and query.device.type != "cpu") or "position_bias" in further:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **further
        )
    if queries == 1:
        query = query.reshape(size, key.shape[1], -1, dim)  # (B, H', H / H', D)
    found = scaled_dot_product_attention(
        query, key, value, attention_mask, scale=scaling, enable_gqa=queries > 1
    )
    return found.reshape(size, heads, queries, -1).transpose(1, 2), None


AttentionInterface.register(GROUPED, grouped_attention)

AttentionMaskInterface.register(GROUPED, sdpa_mask)


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
class Finished:
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

    def step(self) -> list[Finished]:
        """Sample a token for each turn; returns the turns that finish with it."""
        assert self._kv is not None  # for the type checker: somebody joined
        before = [row for row, request in enumerate(self._rows) if not request.done]
        tokens = self._sample()  # (B,)
        finished = []
        for row in before:
            request = self._rows[row]
            request.done = request.done or request.reply.cancelled()
            if request.done:
                finished.append(Finished(request, self._cache_of(row)))
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
