"""What training keeps of its tokens: small, exact, and readable without a tokenizer."""

from __future__ import annotations

import zlib

import pytest

from agentgym_env.errors import BadRequest
from agentgym_env.run_store import RunStore, read_lines
from agentgym_env.token_store import (
    StoredTokens,
    pack_tokens,
    read_pieces,
    unpack_tokens,
    write_pieces,
)
from agentgym_env.trajectory import Tokens
from agentgym_train.training.token_writer import pieces_of
from tests.train.small import textcraft_tokenizer
from tests.train.test_trainer import first_task, guesses, train_one_step

pytestmark = pytest.mark.usefixtures("guess_server")
ROWS = [
    Tokens([1, 2, 70_000], [5, 6, 7], [1, 0, 1], [-0.25, 0.0, -1.5], [3, -1, 4], [1, 3]),
    Tokens([9], [8], [1], [-0.125], [5], [1]),
]


def test_what_is_packed_comes_back():
    rows, advantages = unpack_tokens(pack_tokens(ROWS, [0.5, 0.0, -2.0, 1.0]))
    assert rows == ROWS
    assert advantages == [0.5, 0.0, -2.0, 1.0]


def test_packed_tokens_are_small():
    row = Tokens(
        list(range(500)), [i % 97 for i in range(2000)], [i // 50 % 2 for i in range(2000)],
        [-((i * 7919) % 1000) / 999 if i // 50 % 2 else 0.0 for i in range(2000)],
        [3 if i // 50 % 2 else -1 for i in range(2000)], list(range(100, 2001, 100)),
    )  # fmt: skip
    assert len(pack_tokens([row], [0.5 * m for m in row.loss_mask])) < 4 * 2500


@pytest.mark.parametrize(
    "damaged", [b"", b"nothing", pack_tokens(ROWS, [1.0] * 4)[:-9], zlib.compress(b"\x93\x01")]
)
def test_damaged_bytes_are_refused(damaged):
    with pytest.raises(BadRequest, match="cannot be read"):
        unpack_tokens(damaged)


def test_pieces_join_to_the_text_they_are_of(tmp_path):
    tokenizer = textcraft_tokenizer()
    write_pieces(tmp_path, pieces_of(tokenizer))
    pieces = read_pieces(tmp_path)
    text = "craft 4 oak planks using 1 oak logs\nGoal: craft a bed."
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(pieces[i] for i in ids) == tokenizer.decode(ids) == text
    assert len(pieces) == len(tokenizer)
    assert pieces[tokenizer.eos_token_id] == tokenizer.eos_token
    assert read_pieces(tmp_path / "nowhere") == []


def trained(tmp_path, **changes):
    """(trainer, its store, what was kept) of one step with a group of four."""
    task = first_task()
    wrong = next(n for n in "123456" if n not in (task, "2"))
    trainer, _ = train_one_step(tmp_path, guesses([wrong, task, wrong, wrong]), **changes)
    kept, broken = read_lines(trainer.store.path / "tokens" / "train.jsonl", StoredTokens)
    assert broken == []
    return trainer, trainer.store, kept


def test_a_step_keeps_its_first_groups_tokens_and_everybodys_advantages(tmp_path):
    trainer, store, kept = trained(tmp_path, prompts_per_step=2)
    played = trainer.trained_trajectories
    lines = (store.path / "trajectories" / "train.jsonl").read_bytes()
    stored, _ = RunStore.open(store.path).trajectories("train")
    starts = [0, *[i + 1 for i, byte in enumerate(lines) if byte == ord("\n")][:-1]]
    assert [one.episode for one in kept] == starts
    assert len(played) == len(stored) == len(kept) == 8
    assert [bool(one.packed) for one in kept] == [True] * 4 + [False] * 4
    for trajectory, one, light in zip(played, kept, stored, strict=True):
        assert (light.task, light.tokens) == (trajectory.task, None)
        assert len(one.turn_advantages) == len(trajectory.turns)
        if one.packed:
            rows, advantages = unpack_tokens(one.packed)
            assert [r.completion_ids for r in rows] == [trajectory.tokens.completion_ids]
            assert rows[0].logprobs == pytest.approx(trajectory.tokens.logprobs, abs=1e-6)
            assert rows[0].versions == trajectory.tokens.versions
            zeros = [a for a, m in zip(advantages, rows[0].loss_mask, strict=True) if not m]
            assert set(zeros) <= {0.0}
            first = next(a for a, m in zip(advantages, rows[0].loss_mask, strict=True) if m)
            assert one.turn_advantages[0] == pytest.approx(first, rel=1e-5)
    # Returns 0, 1, 0, 0: GRPO's advantage of the second is 0.75 over a deviation of 0.5.
    returns = [t.reward for t in played[:4]]
    assert sorted(returns) == [0, 0, 0, 1]
    best = kept[returns.index(1)]
    assert best.turn_advantages == [pytest.approx(1.5, rel=1e-3)] * len(best.turn_advantages)
    tokenizer = trainer.policy.tokenizer
    assert read_pieces(store.path / "tokens") == pieces_of(tokenizer)


def test_all_episodes_are_kept_when_all_are_asked_for(tmp_path):
    _, _, kept = trained(tmp_path, prompts_per_step=2, keep_tokens="all")
    assert len(kept) == 8 and all(one.packed for one in kept)


def test_none_keeps_nothing(tmp_path):
    _, store, kept = trained(tmp_path, keep_tokens="none")
    assert kept == [] and not (store.path / "tokens").exists()


def test_a_lost_episode_has_a_line_of_its_own(tmp_path):
    task = first_task()
    wrong = next(n for n in "123456" if n not in (task, "2"))
    trainer, _ = train_one_step(
        tmp_path, guesses([wrong, task, wrong, wrong], lost={3, 4, 5}), keep_tokens="all"
    )
    kept, _ = read_lines(trainer.store.path / "tokens" / "train.jsonl", StoredTokens)
    lost = [t.outcome == "engine_lost" for t in trainer.trained_trajectories]
    assert sum(lost) == 1 and len(kept) == 4
    assert [one.turn_advantages for one, gone in zip(kept, lost, strict=True) if gone] == [[]]
