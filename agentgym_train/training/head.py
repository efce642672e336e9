"""Log-probabilities of labels from a model's hidden states, without the logits of all tokens.

`add_scoring` lets a model's forward return them, so that backbone and LM head stay in one forward,
as distributed models require. The head computes its logits in tiles of the vocabulary, and again in
the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from types import MethodType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from agentgym_env.errors import AgentGymError
from agentgym_train.models.distributed import gathered_weights
from agentgym_train.models.setup import evaluating, short_text
from agentgym_train.models.weights import base_model

TILE: Final = {"cpu": 2**22}

_TILE_ELSEWHERE: Final = 2**26
"""Logits that are held at once, about five times: 16 MiB each on a CPU, 256 MiB elsewhere."""

_LEAST = -1e30
"""Stands for logits of -inf, so that their share in an entropy is 0 and not NaN."""

Scores = tuple[Tensor, Tensor, Tensor]
"""(S,) log-probabilities, entropies in nats, and whether the label is a most likely token."""


class UnscorableModel(AgentGymError, RuntimeError):
    """The model's output cannot be computed from its backbone and its LM head."""


@dataclass(frozen=True, slots=True)
class Logits:
    """What a model does to the output of its LM head: logits = cap(head * scale) / temperature."""

    scale: float = 1.0
    cap: float | None = None
    """cap(x) = cap * tanh(x / cap)."""
    temperature: float = 1.0

    @classmethod
    def from_model(cls, model: Any, temperature: float) -> Logits:
        """From a model's config."""
        config = model.config.get_text_config()
        cap = getattr(config, "final_logit_softcapping", None)
        for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
            scale = getattr(config, name, None)
            if scale is not None:
                return cls(scale, cap, temperature)
        scaling = getattr(config, "logits_scaling", None)
        if scaling is None:
            return cls(1.0, cap, temperature)
        # HyperCLOVA X multiplies by it, all others divide.
        scale = scaling if config.model_type == "hyperclovax" else 1 / scaling
        return cls(scale, cap, temperature)

    def __call__(self, output: Tensor) -> Tensor:
        """(S, V) float32 logits."""
        logits = output.to(torch.promote_types(output.dtype, torch.float32)) * self.scale
        if self.cap is not None:
            logits = self.cap * torch.tanh(logits / self.cap)
        return (logits / self.temperature).clamp(min=_LEAST)

    def backward(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """The gradient at the head's output, from that at the logits."""
        if self.cap is not None:
            gradient = gradient * (1 - (logits * (self.temperature / self.cap)).square())
        return gradient * (self.scale / self.temperature)


def _forward_tile(
    output: Tensor, local: Tensor, kind: Logits, most: Tensor, total: Tensor, moment: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fold a tile into (S,) maxima, sums of exp and of exp times logit; also the label's logit."""
    logits = kind(output)  # (S, n)
    higher = torch.maximum(most, logits.amax(-1))
    shares = (logits - higher[:, None]).exp()  # (S, n)
    rescale = (most - higher).exp()
    total = total * rescale + shares.sum(-1)
    moment = moment * rescale + (shares * logits).sum(-1)
    return higher, total, moment, logits.gather(-1, local[:, None])[:, 0]


def _backward_tile(
    output: Tensor, kind: Logits, log_total: Tensor, entropy: Tensor, of_score: Tensor,
    of_entropy: Tensor, local: Tensor, inside: Tensor,
) -> Tensor:  # fmt: skip
    """(S, n) the gradient at the head's output.

    d log p(label) / d logit_j = [j = label] - p_j, and d entropy / d logit_j is
    -p_j (log p_j + entropy).
    """
    logits = kind(output)  # (S, n)
    log_p = logits - log_total[:, None]  # (S, n)
    inner = of_score[:, None] + of_entropy[:, None] * (log_p + entropy[:, None])
    gradient = -log_p.exp() * inner  # (S, n)
    gradient = gradient.scatter_add(-1, local[:, None], (of_score * inside)[:, None])
    return kind.backward(gradient, logits)


_is_compiled = False


def set_tiles(*, compiled: bool) -> None:
    """Compute tiles of logits by compiled functions, or by plain ones. Applies to the process."""
    global _is_compiled
    _is_compiled = compiled


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(function, dynamic=True)
    return made


def _tile(function: Callable[..., Any]) -> Callable[..., Any]:
    return _compiled(function) if _is_compiled else function


class _Scored(torch.autograd.Function):
    """`Scores` of (S,) labels from (S, H) hidden states and a linear head, by tiles."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, kind: Logits
    ) -> Scores:
        ctx.set_materialize_grads(False)
        device = hidden.device.type
        on = torch.is_autocast_enabled(device)
        ctx.dtype = torch.get_autocast_dtype(device) if on else hidden.dtype
        ctx.kind = kind
        ctx.full = torch.promote_types(ctx.dtype, torch.float32)
        most = torch.full(labels.shape, -torch.inf, device=hidden.device, dtype=ctx.full)  # (S,)
        total, moment, chosen = (torch.zeros_like(most) for _ in range(3))
        with torch.autocast(device, enabled=False):
            for tile in _tiles(hidden, weight, bias, labels, ctx.dtype):
                found = _tile(_forward_tile)(tile.output, tile.local, kind, most, total, moment)
                most, total, moment, at_label = found
                chosen = torch.where(tile.inside, at_label, chosen)
        log_total = most + total.log()
        entropy = log_total - moment / total
        ctx.save_for_backward(hidden, weight, bias, labels, log_total, entropy)
        is_top = chosen >= most
        ctx.mark_non_differentiable(is_top)
        return chosen - log_total, entropy, is_top

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, of_score: Tensor | None, of_entropy: Tensor | None, _: Any
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, log_total, entropy = ctx.saved_tensors
        needs = ctx.needs_input_grad
        zeros = torch.zeros_like(log_total)
        of_score = zeros if of_score is None else of_score
        of_entropy = zeros if of_entropy is None else of_entropy
        found = [
            torch.zeros(one.shape, device=one.device, dtype=ctx.full) if needed else None
            for one, needed in zip((hidden, weight, bias), needs[:3], strict=True)
        ]
        of_hidden, of_weight, of_bias = found
        inputs = hidden.to(ctx.dtype)  # (S, H)
        with gathered_weights(weight, bias), torch.autocast(hidden.device.type, enabled=False):
            for tile in _tiles(hidden, weight, bias, labels, ctx.dtype):
                gradient = _tile(_backward_tile)(
                    tile.output, ctx.kind, log_total, entropy, of_score, of_entropy, tile.local,
                    tile.inside,
                )  # fmt: skip
                if of_bias is not None:
                    of_bias[tile.columns] += gradient.sum(0)
                gradient = gradient.to(ctx.dtype)  # (S, n)
                if of_hidden is not None:
                    _accumulate(of_hidden, gradient, tile.weight)
                if of_weight is not None:
                    _accumulate(of_weight[tile.columns], gradient.T, inputs)
        given = zip((hidden, weight, bias), found, strict=True)
        return *(None if g is None else g.to(one.dtype) for one, g in given), None, None


@dataclass(frozen=True, slots=True)
class _Tile:
    """Some columns of the head's output."""

    columns: slice
    weight: Tensor
    """(n, H)"""
    output: Tensor
    """(S, n)"""
    local: Tensor
    """(S,) the labels' columns in the tile; any where the label is elsewhere."""
    inside: Tensor
    """(S,) bool, whether the label is in the tile."""


def _tile_of(hidden: Tensor) -> int:
    return TILE.get(hidden.device.type, _TILE_ELSEWHERE)


def _tiles(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, dtype: torch.dtype
) -> Any:
    width = max(1, _tile_of(hidden) // max(1, len(hidden)))
    inputs = hidden.to(dtype)
    for start in range(0, len(weight), width):
        columns = slice(start, min(start + width, len(weight)))
        own = weight[columns].to(dtype)
        output = inputs @ own.T
        if bias is not None:
            output += bias[columns].to(dtype)
        local = labels - start
        inside = (local >= 0) & (local < len(own))
        yield _Tile(columns, own, output, local.clamp(0, len(own) - 1), inside)


def _accumulate(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Total += left @ right, summed in the precision of `total`."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif total.device.type == "cuda":
        # Sums of products that are rounded to 16 bits each would be biased.
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))


def _columns(head: Any) -> int:
    return int(head.out_features if hasattr(head, "out_features") else len(head.weight))


def _by_module(head: Any, kind: Logits, hidden: Tensor, labels: Tensor) -> Scores:
    logits = kind(head(hidden))  # (S, V)
    log_p = logits.log_softmax(-1)
    score = log_p.gather(-1, labels[:, None])[:, 0]
    chosen = logits.detach().gather(-1, labels[:, None])[:, 0]
    return score, -(log_p.exp() * log_p).sum(-1), chosen >= logits.detach().amax(-1)


def scores_by_head(head: Any, hidden: Tensor, labels: Tensor, kind: Logits) -> Scores:
    """`Scores` of S labels; `hidden` is (S, H).

    A head that is more than a matrix, such as one with adapters, is called as a module, in tiles of
    tokens.
    """
    if getattr(type(head), "forward", None) is not nn.Linear.forward:
        tile = max(1, _tile_of(hidden) // _columns(head))
        parts = [
            checkpoint(_by_module, head, kind, *part, use_reentrant=False)
            for part in zip(hidden.split(tile), labels.split(tile), strict=True)
        ]
        score, entropy, is_top = (torch.cat(values) for values in zip(*parts, strict=True))
        return score, entropy, is_top
    weight, bias = head.weight, head.bias
    if isinstance(weight, DTensor):
        weight = weight.full_tensor()
        bias = None if bias is None else bias.full_tensor()
    with gathered_weights(weight, bias):
        found: Scores = _Scored.apply(hidden, weight, bias, labels, kind)
    return found


def add_scoring(model: Any, temperature: float = 1.0) -> None:
    """Let `model(input_ids=, scored_at=, scored_ids=)` return `Scores` of S tokens.

    `scored_at` (S,) indexes the flattened input and `scored_ids` (S,) are the tokens that follow
    there. Other calls are as before. Call it before the model is wrapped for distribution.
    """
    core = base_model(model)
    kind = Logits.from_model(core, temperature)

    @wraps(type(core).forward)  # `generate` reads the signature
    def forward(
        self: Any, *args: Any, scored_at: Any = None, scored_ids: Any = None, **options: Any
    ) -> Any:
        if scored_at is None:
            return type(self).forward(self, *args, **options)
        found = self.base_model(*args, use_cache=False, **options).last_hidden_state  # (R, L, H)
        expected = options["input_ids"].shape
        if found.shape[:2] != expected:
            raise UnscorableModel(
                f"{type(self).__name__} returned {tuple(found.shape[:2])} hidden vectors for "
                f"{tuple(expected)} tokens; train without virtual prompt tokens"
            )
        hidden = found.flatten(0, 1)[scored_at]  # (S, H)
        return scores_by_head(self.get_output_embeddings(), hidden, scored_ids, kind)

    core.forward = MethodType(forward, core)  # bound, so that a deep copy calls its own weights


_TOLERANCE = 2e-2
"""Of rounding in 16 bits, as a share of the largest log-probability."""


@torch.no_grad()
def check_scoring(model: Any, temperature: float, autocast: Callable[[], Any]) -> None:
    """Raise `UnscorableModel` if scores are not those of the model's own logits.

    Compares a short text. A model whose weights are not all in this process is not checked.
    """
    weights = [*model.parameters()]
    if any(weight.is_meta or hasattr(weight, "ds_id") for weight in weights):
        return
    ids = short_text(model, weights[0].device)  # (1, P)
    at = torch.arange(ids.shape[1] - 1, device=ids.device)  # (P - 1,)
    with evaluating(model), autocast():
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()  # (P - 1, V)
        found, _, _ = model(input_ids=ids, scored_at=at, scored_ids=ids[0, 1:])  # (P - 1,)
    log_p = (logits / temperature).log_softmax(-1)  # (P - 1, V)
    expected = log_p.gather(1, ids[0, 1:, None])[:, 0]  # (P - 1,)
    apart = (found - expected).abs().max()
    # Weights that are not finite are found by the checks of each step.
    if expected.isfinite().all() and not apart <= _TOLERANCE * (1 + expected.abs().max()):
        raise UnscorableModel(
            f"the log-probabilities of {type(base_model(model)).__name__} differ by "
            f"{float(apart):.2g} from those of its own logits, which it changes in a way that is "
            "not known here. Please report the model"
        )
