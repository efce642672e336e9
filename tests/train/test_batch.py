"""Episodes as tensors."""

from __future__ import annotations

from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.batch import rollout_output, token_batch

FILLER = 0


def episode(mask, rewards, ends, outcome="success") -> Trajectory:
    size = len(mask)
    tokens = Tokens([7, 8], list(range(10, 10 + size)), mask, [-0.5] * size, [0] * size, ends)
    turns = [Turn("r", "a", "o", reward) for reward in rewards]
    return Trajectory(
        env="e", task="t", seed=0, instruction="", observation="o", turns=turns,
        outcome=outcome, policy="p", horizon=9, tokens=tokens,
    )  # fmt: skip


LOST = Trajectory(
    env="e", task="t", seed=0, instruction="", observation="", turns=[],
    outcome="environment_lost", policy="", horizon=9, error="gone",
)  # fmt: skip


def test_episodes_are_padded_and_keep_their_turns():
    two = episode([1, 1, 0, 1], [0.25, 0.5], [2, 4])
    one = episode([1], [1.0], [1])
    batch = token_batch([two, one], 2, width=5, filler_id=FILLER)
    assert batch.loss_mask.tolist() == [[1, 1, 0, 1, 0], [1, 0, 0, 0, 0]]
    assert batch.rewards.tolist() == [[0.25, 0.5], [1.0, 0.0]]
    assert batch.turn_ends.tolist() == [[2, 4], [1, 0]]
    assert batch.teaches.tolist() == [True, True]


def test_a_lost_episode_is_one_token_that_nothing_is_learned_from():
    output = rollout_output([episode([1, 0, 1], [0.0, 1.0], [1, 3]), LOST], FILLER)
    assert output["completion_ids"] == [[10, 11, 12], [FILLER]]
    assert output["env_mask"] == [[1, 0, 1], [0]]
    assert output["trajectory_reward"] == [1.0, None]
    batch = token_batch([LOST, LOST], 2, width=1, filler_id=FILLER)
    assert not batch.loss_mask.any() and not batch.rewards.any() and not batch.teaches.any()


def test_an_episode_cut_by_its_token_budget_before_a_word_teaches_as_an_empty_one():
    empty = episode([], [], [], outcome="token_budget")
    batch = token_batch([empty, empty], 2, width=1, filler_id=FILLER)
    assert batch.teaches.all() and not batch.loss_mask.any()
