"""The policy update of RL: mini-batches of a rollout, each in micro-batches.

Losses are TRL's. Each is called for one micro-batch at a time and weighted so that loss and
gradient are those of the mini-batch, for any split and any number of processes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
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

from agentgym_env.errors import ConfigError
from agentgym_train.training.finite import check_gradient
from agentgym_train.training.microbatches import (
    MicroBatches,
    loss_in_microbatches,
    make_microbatches,
    merge_metrics,
    rows_of,
    summed,
    synced,
)
from agentgym_train.training.packing import backbone_of, pack, score, shares_rows_of

MEANS_OVER_EPISODES = {"grpo", "sapo", "dr_grpo", "luspo"}
"""TRL's losses that divide by the number of episodes."""

_MEANS_OVER_A_ROWS_TOKENS = {"grpo", "sapo"}
"""TRL's losses that are a mean over rows of the mean over each row's tokens."""

_SUMS_OVER_TOKENS = {"dapo", "cispo", "vespo"}


def weight_of_part(
    loss_type: str, *, episodes: float, all_episodes: float, tokens: float, all_tokens: float
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


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a mini-batch, over all processes."""

    episodes: int
    """Episodes that are trained on."""
    tokens: int
    """Trained tokens."""


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


logger = logging.getLogger(__name__)


class PackedUpdate(GRPOTrainer):
    """GRPOTrainer with micro-batches of a token budget and the LM head on trained tokens only.

    A micro-batch is one forward and one backward pass. All processes make the same number of them,
    so that the calls of a distributed model match.
    """

    max_tokens_per_microbatch: int = 0
    """Maximum tokens per micro-batch; 0 chooses a default for the device."""
    beta: float
    """Weight of the KL penalty."""
    epochs_per_rollout: int = 1
    """How often each mini-batch of a rollout is used."""
    counts: Sequence[Counts] = ()
    """Counts of each mini-batch of the current rollout."""
    is_frozen: bool = False
    """Whether the policy is not updated in this step."""
    entropy_bonus: float = 0.0
    """Weight of the mean entropy of the trained tokens in the loss."""
    _trained: Tensor | None = None
    """(B, T) true at the completion tokens to score; None scores all."""
    _scored: tuple[Tensor, Tensor | None] | None = None
    """(B, T) log-probabilities and entropies of the micro-batch that was scored last."""
    _in_one_pass: bool = False
    """Whether the rows to score are already one micro-batch."""
    _warned: bool = False

    def score_only(self, masks: Sequence[Sequence[int]]) -> None:
        """Score only the tokens in these loss masks until the loss is computed."""
        rows = [torch.tensor(mask, dtype=torch.bool) for mask in masks]
        self._trained = pad_sequence(rows, batch_first=True)  # (B, T)

    @torch.no_grad()
    def logprobs(self, output: Mapping[str, Any]) -> Tensor:
        """(B, T) log-probabilities of the current policy, 0 off the trained tokens."""
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)  # (B, P + T)
        attention = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)  # (B, P + T)
        width = output["completion_ids"].shape[1]
        found, _, _ = self._get_per_token_logps_and_entropies(self.model, ids, attention, width)
        return found

    @torch.no_grad()
    def scores_of(self, ids: list[int], width: int, trained: Sequence[int]) -> list[float]:
        """(T,) log-probabilities of the last `width` of one row's ids, 0 where none is trained."""
        row = torch.tensor([ids], device=self.accelerator.device)  # (1, P + T)
        # A router may draw noise, which must not change what is drawn later.
        devices = range(torch.cuda.device_count())
        with torch.random.fork_rng(devices), self._scoring(torch.tensor([trained]).bool()):
            found, _, _ = self._get_per_token_logps_and_entropies(
                self.model, row, torch.ones_like(row), width
            )
        return [float(value) for value in found[0].float()]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The mean loss of a rollout's mini-batches.

        Takes an optimizer step after each mini-batch except the last, and runs the backward pass of
        all its micro-batches except the last; transformers does the rest.

        `inputs` are TRL's and may have (B,) `minibatch`, the number of each row's mini-batch, and
        (B,) `episode_tokens`, the trained tokens of the row's episode.
        """
        parts = self._minibatches(inputs)
        metrics = self._metrics["train" if self.model.training else "eval"]
        before = {name: len(values) for name, values in metrics.items()}
        computed: Tensor | float = 0.0
        for number, (part, counts) in enumerate(parts, 1):
            loss = self._loss_of_minibatch(model, part, counts)
            computed = computed + loss.detach() / len(parts)
            if number < len(parts):
                self._step_optimizer(model, loss)
        # Those of every mini-batch; a mean over tokens, as within a mini-batch.
        each = {
            name: values
            for name, values in metrics.items()
            if len(values) - before.get(name, 0) == len(parts)
        }
        merge_metrics(each, before, [counts.tokens for _, counts in parts])
        return loss + (computed - loss.detach())

    def _minibatches(self, inputs: dict[str, Any]) -> list[tuple[dict[str, Any], Counts]]:
        """The mini-batches in the order of their updates."""
        inputs = dict(inputs)
        numbers = inputs.pop("minibatch", None)  # (B,)
        if numbers is None:
            rows = len(inputs["completion_ids"]) * self.accelerator.num_processes
            tokens = int(inputs["num_items_in_batch"])
            found = [(inputs, self.counts[0] if self.counts else Counts(rows, tokens))]
        else:
            found = [
                (rows_of(inputs, (numbers == number).nonzero()[:, 0].tolist()), counts)
                for number, counts in enumerate(self.counts)
            ]
        if self.is_frozen:
            return found[:1]
        return found * self.epochs_per_rollout

    def _step_optimizer(self, model: Any, loss: Tensor) -> None:
        """Update the policy, as transformers does after a rollout's last mini-batch."""
        accelerator = self.accelerator
        if accelerator.distributed_type == DistributedType.DEEPSPEED:
            accelerator.backward(loss, scale_wrt_gas=False)  # this also takes the step
        else:
            accelerator.backward(loss)
        most = self.args.max_grad_norm or float("inf")
        norm = accelerator.clip_grad_norm_(model.parameters(), most)
        check_gradient(self, norm)
        self._metrics["train"]["earlier_grad_norm"].append(float(norm))
        self.optimizer.step()
        model.zero_grad()

    def _loss_of_minibatch(self, model: Any, inputs: dict[str, Any], counts: Counts) -> Tensor:
        """The loss of a mini-batch, after the backward passes of all micro-batches but the last."""
        inputs["num_items_in_batch"] = torch.tensor(counts.tokens, device=self.accelerator.device)
        mask = inputs["completion_mask"]  # (B, T)
        mask = (mask * inputs["tool_mask"] if "tool_mask" in inputs else mask).bool()  # (B, T)
        if self._couples_rows():
            passes = [list(range(len(mask)))]
        else:
            lengths = (inputs["prompt_mask"].sum(1) + inputs["completion_mask"].sum(1)).tolist()
            shared = shares_rows_of(self.accelerator.unwrap_model(model))
            passes = self.passes(lengths, shared_rows=shared)
        tokens = torch.stack([mask[rows].sum() for rows in passes])  # (passes,)
        trl_loss = super()._compute_loss

        def loss_of(rows: list[int]) -> Tensor:
            part = rows_of(inputs, rows)
            trained = mask[rows]
            sizes = part.pop("episode_tokens", trained.sum(1)).clamp(min=1)  # (rows,)
            if self.loss_type in _MEANS_OVER_A_ROWS_TOKENS:
                # From a mean over the row's tokens to a mean over the episode's.
                part["advantages"] = self._shared(part["advantages"], trained.sum(1) / sizes)
            with (
                self._scoring(trained, in_one_pass=True),
                ragged_gather(self.accelerator),
                self._without_regularization(),
            ):
                loss = trl_loss(model, part) * self._weight(part, counts, trained)
            return loss + self._regularization(part, counts, trained, sizes)

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
            found = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy,
                compute_aux_loss, **images,
            )  # fmt: skip
            self._scored = found[:2]
            return found
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
        if compute_entropy:
            self._scored = torch.cat(logprobs)[order], entropy
            return (*self._scored, None)
        return torch.cat(logprobs)[order], None, None

    def passes(self, lengths: list[int], *, shared_rows: bool) -> MicroBatches:
        """This process's micro-batches; see `make_microbatches`. A collective."""
        return make_microbatches(
            self.accelerator,
            self.model,
            lengths,
            self.max_tokens_per_microbatch,
            shared_rows=shared_rows,
        )

    def synced(self, model: Any, is_last: bool) -> AbstractContextManager[None]:
        """See `synced`."""
        return synced(self.accelerator, model, is_last)

    def _couples_rows(self) -> bool:
        """Whether an episode's loss depends on other episodes, which rules out micro-batches."""
        coupling = {
            "an entropy bonus of TRL": self._entropy_bonus_enabled,
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

    def _weight(self, part: dict[str, Any], counts: Counts, mask: Tensor) -> float:
        """The weight of a micro-batch in the mini-batch's loss.

        Gradients are averaged over processes, so each process's share is multiplied by their
        number.
        """
        processes = self.accelerator.num_processes
        return weight_of_part(
            self.loss_type,
            episodes=len(part["completion_ids"]),
            all_episodes=max(1, counts.episodes) / processes,
            tokens=float(mask.sum()),
            all_tokens=counts.tokens / processes,
        )

    def _regularization(
        self, part: dict[str, Any], counts: Counts, mask: Tensor, sizes: Tensor
    ) -> Tensor:
        """The KL penalty and the entropy bonus of a micro-batch of R rows; `sizes` is (R,).

        beta * KL has the same weights on tokens as the policy's loss, and advantages do not scale
        it. The divergence is the k3 estimator (http://joschu.net/blog/kl-approx.html), multiplied
        by the importance ratio, without which its gradient is biased (as in TRL).
        """
        assert self._scored is not None
        logprobs, entropies = self._scored  # (R, T)
        total = logprobs.new_zeros(())
        if self.beta:
            difference = part["ref_per_token_logps"] - logprobs  # (R, T)
            kl = difference.exp() - 1 - difference  # (R, T)
            if self.args.use_bias_correction_kl:
                old = part.get("old_per_token_logps", logprobs.detach())  # (R, T)
                kl = kl * (logprobs - old).exp()
            kl = kl * mask
            weights = self._token_weights(counts, sizes).to(kl.dtype)  # (R,)
            total = total + self.beta * (kl.sum(1) * weights).sum()
            self._note("kl", kl.sum() / mask.sum())
        if self.entropy_bonus and entropies is not None:
            total = total - self.entropy_bonus * (entropies * mask).sum() / max(1, counts.tokens)
        return total * self.accelerator.num_processes

    def _token_weights(self, counts: Counts, sizes: Tensor) -> Tensor:
        """(R,) the weight of each trained token of a row in the mini-batch's loss."""
        if self.loss_type not in MEANS_OVER_EPISODES:
            return torch.full_like(sizes, 1 / max(1, counts.tokens), dtype=torch.float32)
        length = sizes.float()
        if self.loss_type not in _MEANS_OVER_A_ROWS_TOKENS:
            length = length * 0 + (self.max_completion_length if self.loss_type == "dr_grpo" else 1)
        return 1 / (length * max(1, counts.episodes))

    def _note(self, name: str, value: Tensor) -> None:
        """Append the mean of a value over the processes that have one to TRL's metrics."""
        mode = "train" if self.model.training else "eval"
        found = self.accelerator.gather(value.detach())
        self._metrics[mode][name].append(found.nanmean().item())

    @contextmanager
    def _without_regularization(self) -> Iterator[None]:
        """Context in which TRL's loss has no KL penalty: `_regularization` adds it."""
        beta, self.beta = self.beta, 0.0
        try:
            yield
        finally:
            self.beta = beta

    @staticmethod
    def _shared(advantages: Tensor, share: Tensor) -> Tensor:
        """(R, T) or (R,) advantages times the (R,) share of its episode that a row contains."""
        return advantages * (share[:, None] if advantages.dim() == 2 else share)

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
