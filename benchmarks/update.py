"""The update beside TRL's: trained tokens a second and peak memory on the same ragged episodes.

    OMP_NUM_THREADS=2 python benchmarks/update.py

Episodes of 2 to 30 turns, 60 % of their completions observations. A step is the forward and
backward passes of one batch, by TRL's stock trainer at once and a few episodes at a time, and by
ours; the roads alternate in one process, and the medians are shown. Models have random weights.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from agentgym_train.algorithms import LossSettings
from agentgym_train.training.loss import RLLoss
from agentgym_train.training.rows import TokenRows
from agentgym_train.training.trainer import UNUSED, UpdatingTrainer

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.small_models import small_tokenizer

SIZES = {
    "small": {"vocab_size": 1024, "hidden_size": 128, "num_hidden_layers": 4},
    "large": {"vocab_size": 32_000, "hidden_size": 256, "num_hidden_layers": 4},
}
ON_GPU = torch.cuda.is_available()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=80, help="tokens of a prompt")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for name in args.models:
        batch = ragged_batch(args.episodes, args.prompt, SIZES[name]["vocab_size"])
        describe(name, batch)
        measure(roads(SIZES[name], batch), int(batch["num_items_in_batch"]), args.rounds)


def ragged_batch(episodes: int, prompt: int, vocab_size: int) -> dict[str, Tensor]:
    """What TRL's loss is given: B episodes, prompts of one length."""
    draw = random.Random(0)
    masks = []
    for _ in range(episodes):
        turns = draw.randint(2, 30)
        lengths = [(draw.randint(4, 12), draw.randint(6, 18)) for _ in range(turns)]
        masks.append(torch.tensor([bit for s, o in lengths for bit in [1] * s + [0] * o]))
    numbers = torch.Generator().manual_seed(0)
    tool_mask = pad_sequence(masks, batch_first=True)  # (B, T)
    real = pad_sequence([torch.ones_like(mask) for mask in masks], batch_first=True)  # (B, T)
    shape = (episodes, prompt)
    batch = {
        "prompt_ids": torch.randint(3, vocab_size, shape, generator=numbers),
        "prompt_mask": torch.ones(shape, dtype=torch.long),
        "completion_ids": torch.randint(3, vocab_size, real.shape, generator=numbers) * real,
        "completion_mask": real,
        "tool_mask": tool_mask,
        "advantages": torch.randn(episodes, 1, generator=numbers) * tool_mask,
        "num_items_in_batch": tool_mask.sum(),
    }
    return {key: value.cuda() if ON_GPU else value for key, value in batch.items()}


def describe(name: str, batch: dict[str, Tensor]) -> None:
    """One line on the model and its episodes."""
    completions = int(batch["completion_mask"].sum())
    tokens = completions + int(batch["prompt_mask"].sum())
    padded = batch["prompt_mask"].numel() + batch["completion_mask"].numel()
    trained = int(batch["num_items_in_batch"])
    print(
        f"\n{name} {SIZES[name]}: {len(batch['prompt_ids'])} episodes of {tokens:,} tokens, "
        f"{padded:,} padded; {trained:,} trained, {1 - trained / completions:.0%} of the "
        f"completions observations; {torch.get_num_threads()} threads"
    )


def roads(size: dict[str, int], batch: dict[str, Tensor]) -> dict[str, Callable[[], float]]:
    """Each road's step: clears the gradients, computes new ones, gives the loss."""
    stock, ours = make_trainer(GRPOTrainer, size), make_trainer(Ours, size)
    start(ours)
    rows = rows_of(batch)
    return {
        "TRL, all episodes at once": lambda: step(stock, batch, len(batch["prompt_ids"])),
        "TRL, 4 episodes a pass": lambda: step(stock, batch, 4),
        "ours": lambda: own_step(ours, rows),
    }


class Ours(UpdatingTrainer, GRPOTrainer):
    """TRL's trainer with our update."""


def rows_of(batch: dict[str, Tensor]) -> TokenRows:
    """The batch as rows of one update, each token with the same weight."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)  # (B, P + T)
    none = torch.zeros_like(batch["prompt_ids"])  # (B, P)
    trained = torch.cat([none, batch["tool_mask"]], 1).bool()  # (B, P + T)
    lengths = batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)  # (B,)
    tokens = int(batch["num_items_in_batch"])
    return TokenRows(
        ids=ids,
        lengths=lengths,
        trained=trained,
        weights=trained / tokens,
        advantages=torch.cat([none.float(), batch["advantages"]], 1),
        tokens=tokens,
    )


def start(trainer: Ours) -> None:
    """Finish the construction of our trainer."""
    trainer.start_updates(RLLoss(LossSettings()), max_tokens=0)


def own_step(trainer: Any, rows: TokenRows) -> float:
    """The loss; the gradients are in the model."""
    trainer.model.zero_grad()
    loss, _ = trainer.update.run(trainer.model, [rows])
    return float(loss)


def step(trainer: Any, batch: dict[str, Tensor], episodes_per_pass: int) -> float:
    """The loss; the gradients are in the model."""
    trainer.model.zero_grad()
    total = 0.0
    for first in range(0, len(batch["prompt_ids"]), episodes_per_pass):
        rows = slice(first, first + episodes_per_pass)
        part = {key: value[rows] if value.dim() else value for key, value in batch.items()}
        loss = trainer.compute_loss(trainer.model, part)
        trainer.accelerator.backward(loss)
        total += loss.item()
    return total


def measure(steps: dict[str, Callable[[], float]], trained: int, rounds: int) -> None:
    """Print the medians of `rounds` rounds after a warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    peaks: dict[str, list[float]] = {name: [] for name in steps}
    losses = {name: run() for name, run in steps.items()}
    for _ in range(rounds):
        for name, run in steps.items():
            before = reset_peak()
            began = time.perf_counter()
            run()
            if ON_GPU:
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - began)
            peaks[name].append(peak() - before)
    first = next(iter(steps))
    rates = {name: trained / statistics.median(found) for name, found in seconds.items()}
    memory = {name: statistics.median(found) / 2**20 for name, found in peaks.items()}
    print("| road | trained tokens/s | x TRL | peak memory, MiB | of TRL | loss - TRL's |")
    print("|---|---|---|---|---|---|")
    for name in steps:
        print(
            f"| {name} | {rates[name]:,.0f} | {rates[name] / rates[first]:.2f} | "
            f"{memory[name]:,.0f} | {memory[name] / memory[first]:.2f} | "
            f"{losses[name] - losses[first]:+.1e} |"
        )


def reset_peak() -> float:
    """Bytes held now; the peak counts from here."""
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else a road would live on what the one before gave back
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> float:
    """The most bytes held since `reset_peak`."""
    return torch.cuda.max_memory_allocated() if ON_GPU else _status("VmHWM")


def make_trainer(
    kind: type[GRPOTrainer], size: dict[str, int], attention: str | None = None
) -> Any:
    """A trainer over a model whose weights depend on the size alone."""
    torch.manual_seed(0)
    shape = {
        "intermediate_size": 3 * size["hidden_size"], "num_attention_heads": 4,
        "num_key_value_heads": 4, "head_dim": size["hidden_size"] // 4, **size,
    }  # fmt: skip
    model = Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True))
    if attention is not None:
        model.set_attn_implementation(attention)
    trainer = kind(
        model=model,
        processing_class=tokenizer(),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), num_generations=4, use_cpu=not ON_GPU, bf16=ON_GPU,
            per_device_train_batch_size=4, gradient_checkpointing=False, report_to="none",
            trust_remote_code=False,
        ),
        train_dataset=UNUSED.select_columns(["prompt"]),
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer


def tokenizer() -> PreTrainedTokenizerFast:
    """Any: the episodes are made of ids."""
    return small_tokenizer(["go north, take the key"])


def _status(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * float(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}; run on Linux or on a GPU")


if __name__ == "__main__":
    main()
