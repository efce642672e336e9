"""The policy update: micro-batches of similar length, with the LM head on trained tokens only.

Losses are TRL's. Each is called for one micro-batch at a time and weighted so that loss and
gradient are those of the whole step, for any split into micro-batches and any number of processes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOTrainer

from agentgym_env.errors import AgentGymError, ConfigError

MEANS_OVER_EPISODES = {"grpo", "sapo", "dr_grpo", "luspo"}

"""TRL's losses that divide by the number of episodes."""

_SUMS_OVER_TOKENS = {"dapo", "cispo", "vespo"}


def weight_of_part(
    loss_type: str, *, episodes: int, all_episodes: int, tokens: float, all_tokens: float
) -> float:
    """The weight of TRL's loss of a micro-batch, so that the micro-batches sum to the step's loss.

    l(i, t) is the loss of token t of episode i, M the loss mask, B the number of episodes and N the
    number of trained tokens of the step.

    - `grpo` (arXiv:2402.03300; GSPO, arXiv:2507.18071, is `grpo` with a sequence-level ratio),
      `sapo` (arXiv:2511.20347), `luspo` (arXiv:2602.05261) and `dr_grpo` (arXiv:2503.20783) are
      means over episodes, 1/B sum_i f(l(i, .)). A micro-batch of b episodes has the weight b/B.
    - `dapo` (arXiv:2503.14476), `cispo` (arXiv:2506.13585) and `vespo` (arXiv:2602.10693) are
      1/N sum_it M l. TRL already uses the N of the step, so the weight is 1.
    - `bnpo` divides by the N of its batch, which would make the step depend on the split. A
      micro-batch of n tokens has the weight n/N, so the step's loss equals `dapo`.
    """
    if loss_type in MEANS_OVER_EPISODES:
        return episodes / all_episodes
    if loss_type in _SUMS_OVER_TOKENS:
        return 1.0
    if loss_type == "bnpo":
        return tokens / max(all_tokens, 1.0)
    known = sorted(MEANS_OVER_EPISODES | _SUMS_OVER_TOKENS | {"bnpo"})
    raise ConfigError(f"no loss {loss_type!r}; choose from {', '.join(known)}")


MicroBatches = list[list[int]]

"""Row indices of each forward and backward pass; every row is in exactly one."""

_PASS_COST = 256

"""Overhead of a micro-batch, in tokens; measured on a CPU."""

_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


@dataclass(frozen=True, slots=True)
class Layout:
    """The input of one model call for R rows of W columns, and the positions to score."""

    input_ids: Tensor
    """(R, L) each row's tokens from column 0 on, or (1, N) all rows concatenated."""
    position_ids: Tensor | None
    """(1, N) restarting at every row; None if positions are the columns."""
    predictors: Tensor
    """(S,) index into the flattened `input_ids` of the token before each scored token."""
    labels: Tensor
    """(S,) the scored tokens."""
    scored: Tensor
    """(R, W) bool: the positions of the S scores, in order."""


def shares_rows(config: Any, stateful: bool) -> bool:
    """Whether several episodes can be packed into one row: this needs varlen attention.

    FlashAttention derives the boundaries of episodes from the position ids. Other kernels would
    need a dense mask over the whole row, and a recurrent layer would leak one episode into the
    next.
    """
    layers = set(getattr(config, "layer_types", None) or ())
    varlen = "flash" in (config._attn_implementation or "")
    return varlen and not stateful and layers <= _ATTENTION_LAYERS


def plan(lengths: Sequence[int], budget: int, *, shared_rows: bool) -> MicroBatches:
    """Micro-batches of at most `budget` tokens with padding; a longer row gets its own.

    The largest is first, so that a run that exceeds the memory fails at its first micro-batch.
    """
    passes = _bins(lengths, budget) if shared_rows else _like_lengths(lengths, budget)
    return sorted(passes, key=lambda rows: -sum(lengths[row] for row in rows))


def split(passes: MicroBatches, lengths: Sequence[int], count: int) -> MicroBatches:
    """The same rows in `count` micro-batches, by repeatedly halving the largest divisible one.

    The processes of a distributed model need equal numbers of micro-batches.
    """
    passes = list(passes)
    while len(passes) < count:
        divisible = [number for number, rows in enumerate(passes) if len(rows) > 1]
        if not divisible:
            raise ValueError(
                f"{len(lengths)} rows cannot be split into {count} micro-batches; give every "
                "process the same number of rows"
            )
        largest = max(divisible, key=lambda number: sum(lengths[r] for r in passes[number]))
        rows = passes[largest]
        passes[largest : largest + 1] = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return passes


def pack(
    input_ids: Tensor, attention_mask: Tensor, trained: Tensor, *, shared_rows: bool
) -> Layout:
    """The `Layout` of R padded rows; all inputs are (R, W), `trained` is true at trained tokens.

    Left padding is removed, so that positions count from the first token. Right padding needs no
    mask, since attention is causal. A row's first token has no predictor and is not scored.
    """
    real = attention_mask.bool()  # (R, W)
    position = real.cumsum(1) - 1  # (R, W)
    lengths = real.sum(1)  # (R,)
    if shared_rows:
        first = lengths.cumsum(0) - lengths  # (R,)
        ids = input_ids[real][None]  # (1, N)
    else:
        width = int(lengths.max())
        first = torch.arange(len(lengths), device=lengths.device) * width  # (R,)
        ids = input_ids.new_zeros(len(lengths), width)  # (R, L)
    flat = first[:, None] + position  # (R, W)
    if not shared_rows:
        ids.view(-1)[flat[real]] = input_ids[real]
    scored = trained.bool() & real & (position > 0)  # (R, W)
    return Layout(
        input_ids=ids,
        position_ids=position[real][None] if shared_rows else None,
        predictors=flat[scored] - 1,  # (S,)
        labels=input_ids[scored],  # (S,)
        scored=scored,
    )


def _bins(lengths: Sequence[int], budget: int) -> MicroBatches:
    """First fit, longest rows first."""
    passes: MicroBatches = []
    room: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda r: -lengths[r]):
        fits = next((n for n, left in enumerate(room) if left >= lengths[row]), None)
        if fits is None:
            passes.append([row])
            room.append(budget - lengths[row])
        else:
            passes[fits].append(row)
            room[fits] -= lengths[row]
    return passes


def _like_lengths(lengths: Sequence[int], budget: int) -> MicroBatches:
    """The cheapest split of the rows, sorted by length, into padded micro-batches.

    cost[j] = min over i <= j of cost[i] + (j - i) * longest of rows i..j-1 + _PASS_COST.
    """
    rows = sorted(range(len(lengths)), key=lengths.__getitem__)
    cost = [0.0] + [float("inf")] * len(rows)
    start = [0] * (len(rows) + 1)
    for end in range(1, len(rows) + 1):
        longest = lengths[rows[end - 1]]
        for begin in range(end - 1, -1, -1):
            tokens = (end - begin) * longest
            if tokens > budget and begin < end - 1:
                break
            if cost[begin] + tokens + _PASS_COST < cost[end]:
                cost[end] = cost[begin] + tokens + _PASS_COST
                start[end] = begin
    passes: MicroBatches = []
    end = len(rows)
    while end:
        passes.append(rows[start[end] : end])
        end = start[end]
    return passes


_BUDGET = {"cpu": 4096}

_BUDGET_ELSEWHERE = 16384

"""Default tokens per micro-batch; the value for CPUs is measured."""


def make_microbatches(
    accelerator: Accelerator, lengths: Sequence[int], budget: int, *, shared_rows: bool
) -> MicroBatches:
    """This process's micro-batches, as many as the process with the most needs. A collective.

    `budget` is the maximum tokens per micro-batch; 0 chooses a default for the device.
    """
    device = accelerator.device
    budget = budget or _BUDGET.get(device.type, _BUDGET_ELSEWHERE)
    passes = plan(lengths, budget, shared_rows=shared_rows)
    if accelerator.num_processes > 1:
        counts = accelerator.gather(torch.tensor([len(passes)], device=device))
        passes = split(passes, lengths, int(counts.max()))
    return passes


@contextmanager
def synced(accelerator: Accelerator, model: Any, is_last: bool) -> Iterator[None]:
    """Synchronize DDP gradients only at the last micro-batch; sharded models do it at each."""
    by_ddp = accelerator.distributed_type in (
        DistributedType.MULTI_GPU,
        DistributedType.MULTI_CPU,
    )
    if is_last or not by_ddp:
        yield
    else:
        with accelerator.no_sync(model):
            yield


def backward(accelerator: Accelerator, loss: Tensor) -> None:
    """Accumulate the gradient of a micro-batch that is not the step's last."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        engine = accelerator.deepspeed_engine_wrapped
        engine.backward(loss, sync_gradients=False, scale_wrt_gas=False)
    else:
        accelerator.backward(loss)


def merge_metrics(
    metrics: dict[str, list[float]], before: Mapping[str, int], weights: Sequence[float]
) -> None:
    """Merge the values that TRL logged per micro-batch: a weighted mean, or the minimum or maximum.

    `before` is the number of values of each metric before the micro-batches; `weights` are the
    weights of the micro-batches.
    """
    for name, values in metrics.items():
        first = before.get(name, 0)
        found = [(v, n) for v, n in zip(values[first:], weights, strict=False) if v == v and n]
        if not found:
            continue
        if name.endswith(("_min", "_max")):
            merged = (min if name.endswith("_min") else max)(v for v, _ in found)
        else:
            merged = sum(v * n for v, n in found) / sum(n for _, n in found)
        values[first:] = [merged]


def loss_in_microbatches(
    accelerator: Accelerator,
    model: Any,
    microbatches: MicroBatches,
    loss_of: Callable[[list[int]], Tensor],
    metrics: dict[str, list[float]],
    weights: Sequence[float],
) -> Tensor:
    """The loss of a step; runs the backward pass of all micro-batches except the last.

    `loss_of` returns TRL's loss of some rows, scaled so that the losses of all micro-batches add
    up. The values that TRL appends to `metrics` per micro-batch are merged by `weights`.
    """
    before = {name: len(values) for name, values in metrics.items()}
    computed: Tensor | float = 0.0
    for number, rows in enumerate(microbatches, 1):
        is_last = number == len(microbatches)
        with synced(accelerator, model, is_last):
            loss = loss_of(rows)
            if not is_last and torch.is_grad_enabled():
                backward(accelerator, loss)
        computed = computed + loss.detach()
    merge_metrics(metrics, before, weights)
    return loss + (computed - loss.detach())


def summed(accelerator: Accelerator, values: Tensor) -> list[float]:
    """The sums over all processes of one value per micro-batch. A collective."""
    total: Tensor = accelerator.reduce(values.float(), reduction="sum")
    return total.tolist()


def shares_rows_of(core: Any) -> bool:
    """Whether rows of an unwrapped model can hold several episodes; see `shares_rows`."""
    model = core.get_base_model() if hasattr(core, "get_base_model") else core
    return shares_rows(model.config.get_text_config(), bool(model._is_stateful))


def rows_of(inputs: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """The given rows of every tensor that has rows."""
    return {
        name: value[list(rows)] if isinstance(value, Tensor) and value.dim() else value
        for name, value in inputs.items()
    }


@torch.no_grad()
def check_packing(model: Any) -> None:
    """Raise `ConfigError` if packed episodes would influence each other in this model.

    Runs the model: two short texts in one row must give the same result as each of them alone.
    """
    length = 8
    device = next(model.parameters()).device
    vocabulary = model.get_input_embeddings().num_embeddings
    ids = torch.arange(2 * length, device=device)[None] % vocabulary  # (1, 2 length)
    positions = torch.arange(length, device=device).repeat(2)[None]  # (1, 2 length)
    was_training = model.training
    model.eval()
    together = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0, length:]
    alone = model(input_ids=ids[:, length:], use_cache=False).logits[0]
    model.train(was_training)
    if not torch.allclose(together, alone, rtol=1e-2, atol=1e-2):
        raise ConfigError(
            f"packing: the output of {type(model).__name__} for a text depends on the text before "
            "it in its row. Set packing: false; rows are then padded"
        )


@contextmanager
def ragged_gather(accelerator: Accelerator) -> Iterator[None]:
    """Context in which `accelerator.gather` pads tensors of different lengths with NaN.

    TRL gathers a clip ratio per row of a loss and expects the same number of rows in all processes.
    Here micro-batches are split by tokens, and torch's gather of unequal tensors aborts or returns
    garbage. TRL ignores NaN in minimum and maximum.
    """
    if accelerator.num_processes == 1:
        yield
        return
    gather: Any = accelerator.gather

    def padded(tensor: Tensor) -> Any:
        if tensor.dim() and tensor.is_floating_point():
            tensor = accelerator.pad_across_processes(tensor, pad_index=float("nan"))
        return gather(tensor)

    accelerator.gather = padded  # type: ignore[method-assign]
    try:
        yield
    finally:
        accelerator.gather = gather  # type: ignore[method-assign]


class UnscorableModel(AgentGymError, RuntimeError):
    """The model's backbone does not return one hidden vector per input token."""


def backbone_of(model: Any) -> Any:
    """The model below the LM head of an unwrapped model, with its PEFT adapters."""
    return (model.get_base_model() if hasattr(model, "get_base_model") else model).base_model


def score(model: Any, backbone: Any, layout: Layout) -> tuple[Tensor, Tensor | None]:
    """(logprobs (R, W), entropies (R, W) or None), 0 where nothing is scored.

    `model` has TRL's fused LM head and may be wrapped for distribution; `backbone` is a part of it.
    The head computes its logits in tiles, and again in the backward pass, so no (S, V) tensor is
    kept. It also applies temperature, softcapping and scaling.
    """
    positions = {} if layout.position_ids is None else {"position_ids": layout.position_ids}
    with hidden_states_at(backbone, layout):
        output = model(
            input_ids=layout.input_ids,
            shift_labels=layout.labels[None],  # (1, S)
            fused_lm_head=True,
            **positions,
        )

    def back(values: Tensor) -> Tensor:
        return values.new_zeros(layout.scored.shape).masked_scatter(layout.scored, values)

    return back(output.log_probs), None if output.entropy is None else back(output.entropy)


@contextmanager
def hidden_states_at(backbone: Any, layout: Layout) -> Iterator[None]:
    """Context in which the backbone returns only the predictors' hidden states, as (1, S, H)."""

    def select(module: Any, inputs: Any, output: Any) -> Any:
        hidden = output.last_hidden_state  # (R, L, H)
        if hidden.shape[:2] != layout.input_ids.shape:
            raise UnscorableModel(
                f"{type(module).__name__} returned {tuple(hidden.shape[:2])} hidden vectors for "
                f"{tuple(layout.input_ids.shape)} tokens; train without virtual prompt tokens"
            )
        output.last_hidden_state = hidden.flatten(0, 1)[layout.predictors][None]  # (1, S, H)
        return output

    handle = backbone.register_forward_hook(select)
    try:
        yield
    finally:
        handle.remove()


logger = logging.getLogger(__name__)


class PackedUpdate(GRPOTrainer):
    """GRPOTrainer with micro-batches of a token budget and the LM head on trained tokens only.

    A micro-batch is one forward and one backward pass. All processes make the same number of them,
    so that the calls of a distributed model match.
    """

    max_tokens_per_microbatch: int = 0
    """Maximum tokens per micro-batch; 0 chooses a default for the device."""
    _trained: Tensor | None = None
    """(B, T) true at the completion tokens to score; None scores all."""
    _in_one_pass: bool = False
    """Whether the rows to score are already one micro-batch."""
    _warned: bool = False

    def score_only(self, masks: Sequence[Sequence[int]]) -> None:
        """Score only the tokens in these loss masks until the loss is computed."""
        rows = [torch.tensor(mask, dtype=torch.bool) for mask in masks]
        self._trained = pad_sequence(rows, batch_first=True)  # (B, T)

    def logprobs(self, output: Mapping[str, Any]) -> Tensor:
        """(B, T) log-probabilities of the current policy, 0 off the trained tokens."""
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)  # (B, P + T)
        attention = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)  # (B, P + T)
        width = output["completion_ids"].shape[1]
        found, _, _ = self._get_per_token_logps_and_entropies(self.model, ids, attention, width)
        return found

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """TRL's loss of all rows; runs the backward pass of all micro-batches except the last."""
        mask = inputs["completion_mask"]  # (B, T)
        mask = (mask * inputs["tool_mask"] if "tool_mask" in inputs else mask).bool()  # (B, T)
        if self._couples_rows():
            with self._scoring(mask):
                return super()._compute_loss(model, inputs)
        lengths = (inputs["prompt_mask"].sum(1) + inputs["completion_mask"].sum(1)).tolist()
        shared = shares_rows_of(self.accelerator.unwrap_model(model))
        passes = self.passes(lengths, shared_rows=shared)
        tokens = torch.stack([mask[rows].sum() for rows in passes])  # (passes,)
        trl_loss = super()._compute_loss

        def loss_of(rows: list[int]) -> Tensor:
            part = rows_of(inputs, rows)
            with self._scoring(mask[rows], in_one_pass=True), ragged_gather(self.accelerator):
                return trl_loss(model, part) * self._weight(part, inputs, mask[rows])

        metrics = self._metrics["train" if self.model.training else "eval"]
        weights = summed(self.accelerator, tokens)
        return loss_in_microbatches(self.accelerator, model, passes, loss_of, metrics, weights)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **images: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """(B, T) log-probabilities and entropies as TRL's, 0 off the trained tokens."""
        if self._needs_the_padded_batch(model, compute_aux_loss, images):
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy,
                compute_aux_loss, **images,
            )  # fmt: skip
        trained = _columns(self._trained, attention_mask, logits_to_keep)  # (B, P + T)
        rows = list(range(len(input_ids)))
        core = self.accelerator.unwrap_model(model)
        backbone, shared = backbone_of(core), shares_rows_of(core)
        lengths = attention_mask.sum(1).tolist()
        passes = [rows] if self._in_one_pass else self.passes(lengths, shared_rows=shared)
        logprobs: list[Tensor] = []
        entropies: list[Tensor] = []
        for chosen in passes:
            layout = pack(
                input_ids[chosen], attention_mask[chosen], trained[chosen], shared_rows=shared
            )
            with self.accelerator.autocast():
                found, spread = score(model, backbone, layout)
            logprobs.append(found[:, -logits_to_keep:])  # (rows, T)
            if spread is not None:
                entropies.append(spread[:, -logits_to_keep:])
        order = torch.tensor([row for chosen in passes for row in chosen]).argsort()
        order = order.to(input_ids.device)  # (B,)
        entropy = torch.cat(entropies)[order] if compute_entropy else None  # (B, T)
        return torch.cat(logprobs)[order], entropy, None

    def passes(self, lengths: list[int], *, shared_rows: bool) -> MicroBatches:
        """This process's micro-batches; see `make_microbatches`. A collective."""
        return make_microbatches(
            self.accelerator, lengths, self.max_tokens_per_microbatch, shared_rows=shared_rows
        )

    def synced(self, model: Any, is_last: bool) -> AbstractContextManager[None]:
        """See `synced`."""
        return synced(self.accelerator, model, is_last)

    def _couples_rows(self) -> bool:
        """Whether an episode's loss depends on other episodes, which rules out micro-batches."""
        coupling = {
            "an entropy bonus": self._entropy_bonus_enabled,
            "top_entropy_quantile": self.top_entropy_quantile < 1.0,
            "a router's auxiliary loss": self.aux_loss_enabled,
        }
        causes = [name for name, present in coupling.items() if present]
        if causes:
            self._warn(f"{causes[0]} is computed over all episodes of a process")
        return bool(causes)

    def _needs_the_padded_batch(self, model: Any, aux_loss: bool, images: dict[str, Any]) -> bool:
        """Whether only TRL's own method, which is slower, can compute this."""
        replicated = isinstance(model, torch.nn.DataParallel)
        if replicated:
            self._warn("torch.nn.DataParallel splits rows itself; start one process per GPU")
        return aux_loss or replicated or any(value is not None for value in images.values())

    def _warn(self, cause: str) -> None:
        if not self._warned:
            logger.warning("micro-batches are off, so a step may exceed the memory: %s", cause)
        self._warned = True

    def _weight(self, part: dict[str, Any], inputs: dict[str, Any], mask: Tensor) -> float:
        """The weight of a micro-batch in the step's loss."""
        batches = self.accelerator.num_processes * self.args.steps_per_generation
        return weight_of_part(
            self.loss_type,
            episodes=len(part["completion_ids"]),
            all_episodes=len(inputs["completion_ids"]),
            tokens=float(mask.sum()),
            all_tokens=float(inputs["num_items_in_batch"]) / batches,
        )

    @contextmanager
    def _scoring(self, trained: Tensor, in_one_pass: bool = False) -> Iterator[None]:
        """Context in which only the tokens in `trained` are scored."""
        self._trained, self._in_one_pass = trained, in_one_pass
        try:
            yield
        finally:
            self._trained, self._in_one_pass = None, False


def _columns(trained: Tensor | None, attention_mask: Tensor, completion_width: int) -> Tensor:
    """(B, P + T) bool: the trained tokens in prompts and completions."""
    prompt_width = attention_mask.shape[1] - completion_width
    if trained is None:
        columns = attention_mask.bool().clone()  # (B, P + T)
        columns[:, :prompt_width] = False
        return columns
    trained = trained.to(attention_mask.device)
    missing = completion_width - trained.shape[1]
    return pad(trained, (prompt_width, missing))  # (B, P + T)
