"""Writes a step's advantages, and the tokens of selected episodes, to the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from accelerate import PartialState
from torch import Tensor

from agentgym_env.run_store import RunStore
from agentgym_env.token_store import PIECES, StoredTokens, pack_tokens, write_pieces
from agentgym_env.trajectory import Trajectory
from agentgym_train.models.distributed import gathered

KeepTokens = Literal["none", "sample", "all"]


class TokenWriter:
    """Writes the advantages of all episodes, and the tokens of selected ones.

    `sample` selects the first group of each step, so that its episodes can be compared. `all`
    selects every episode. `none` writes nothing.
    """

    def __init__(self, store: RunStore, keep: KeepTokens, group_size: int, tokenizer: Any) -> None:
        self._store = store
        self._keep = keep
        self._group_size = group_size
        self._is_main = PartialState().is_main_process
        folder = store.path / "tokens"
        if keep != "none" and self._is_main and not (folder / PIECES).is_file():
            # With the tokens' texts next to them, readers do not need the tokenizer.
            write_pieces(folder, pieces_of(tokenizer))

    def keep(
        self,
        name: str,
        trajectories: Sequence[Trajectory],
        advantages: Tensor,  # (B, V)
        starts: Sequence[int],
    ) -> None:
        """Write a step's advantages and tokens.

        `starts` are the offsets of all processes' episodes in the trajectory file; only the main
        process needs them. A collective: every process must call it.
        """
        if self._keep == "none":
            return
        own = []
        for number, (trajectory, given) in enumerate(
            zip(trajectories, advantages.tolist(), strict=True)
        ):
            length = sum(len(row.completion_ids) for row in trajectory.rows)
            # A lost episode has no advantages, and its row may be shorter than its tokens.
            values = (given + [0.0] * length)[:length]
            chosen = self._keep == "all" or (self._is_main and number < self._group_size)
            packed = pack_tokens(trajectory.rows, values) if chosen and trajectory.rows else b""
            own.append((_turn_means(trajectory, values), packed))
        shares = gathered(own)
        if self._is_main:
            everyone = [kept for share in shares for kept in share]
            self._store.append_tokens(
                name,
                (
                    StoredTokens(start, turns, packed)
                    for start, (turns, packed) in zip(starts, everyone, strict=True)
                ),
            )


def pieces_of(tokenizer: Any) -> list[str]:
    """The text that each token id adds to a sentence; U+FFFD for a part of a character."""
    before = tokenizer.encode("a", add_special_tokens=False)
    held = tokenizer.decode(before)
    # Decode after another token, since some tokenizers drop a leading space.
    texts = tokenizer.batch_decode(
        [[*before, number] for number in range(len(tokenizer))],
        skip_special_tokens=False,
        clean_up_tokenization_spaces=False,
    )
    return [str(text).removeprefix(held) for text in texts]


def _turn_means(trajectory: Trajectory, values: Sequence[float]) -> list[float]:
    means, offset = [], 0
    for row in trajectory.rows:
        begin = 0
        for end in row.turn_ends:
            span = [values[offset + i] for i in range(begin, end) if row.loss_mask[i]]
            means.append(float(f"{sum(span) / len(span):.6g}") if span else 0.0)
            begin = end
        offset += len(row.completion_ids)
    return means
