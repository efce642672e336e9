"""Episodes as tensors."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.training.batch import rollout_output, token_batch

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
    batch = token_batch([two, one], 2, width=5, pad_id=FILLER)
    assert batch.loss_mask.tolist() == [[1, 1, 0, 1, 0], [1, 0, 0, 0, 0]]
    assert batch.rewards.tolist() == [[0.25, 0.5], [1.0, 0.0]]
    assert batch.turn_ends.tolist() == [[2, 4], [1, 0]]
    assert batch.trainable.tolist() == [True, True]


def test_a_lost_episode_is_one_token_that_nothing_is_learned_from():
    output = rollout_output([episode([1, 0, 1], [0.0, 1.0], [1, 3]), LOST], FILLER)
    assert output["completion_ids"] == [[10, 11, 12], [FILLER]]
    assert output["env_mask"] == [[1, 0, 1], [0]]
    assert output["trajectory_reward"] == [1.0, None]
    batch = token_batch([LOST, LOST], 2, width=1, pad_id=FILLER)
    assert not batch.loss_mask.any() and not batch.rewards.any() and not batch.trainable.any()


def test_an_episode_cut_by_its_token_budget_before_a_word_teaches_as_an_empty_one():
    empty = episode([], [], [], outcome="token_budget")
    batch = token_batch([empty, empty], 2, width=1, pad_id=FILLER)
    assert batch.trainable.all() and not batch.loss_mask.any()


def test_a_turns_state_is_the_text_it_answers():
    def seen(first, *answers):
        played = episode([1] * len(answers), [0.0] * len(answers), [*range(1, len(answers) + 1)])
        turns = [Turn("r", "a", text) for text in answers]
        return replace(played, observation=first, turns=turns)

    episodes = [seen("x", "y", "x", "w"), seen("x", "z")]
    (x, y, x_again), (x_of_another, after_the_end, _) = states = token_batch(
        episodes, 2, 3, FILLER
    ).states.tolist()
    assert x == x_again == x_of_another != y and min(x, y) >= 0 and after_the_end == -1
    assert token_batch(episodes, 2, 3, FILLER).states.tolist() == states


@pytest.mark.parametrize(
    ("outcome", "truncated"),
    [("success", False), ("failure", False), ("policy_timeout", False), ("horizon", True),
     ("token_budget", True)],
)  # fmt: skip
def test_horizon_and_token_budget_are_truncations(outcome, truncated):
    batch = token_batch([episode([1], [1.0], [1], outcome)], 1, 1, FILLER)
    assert batch.truncated.tolist() == [truncated] and batch.trainable.all()


def test_an_outcome_that_is_not_chosen_is_in_no_batch_but_in_the_log():
    cut, won = episode([1, 1], [0.5], [2], "horizon"), episode([1], [1.0], [1])
    chosen = frozenset({"success", "failure"})
    batch = token_batch([cut, won], 2, 2, FILLER, chosen)
    assert batch.trainable.tolist() == [False, True]
    assert batch.loss_mask.tolist() == [[0, 0], [1, 0]] and batch.rewards.tolist() == [[0], [1]]
    output = rollout_output([cut, won], FILLER, chosen)
    assert output["env_mask"] == [[0], [1]] and output["trajectory_reward"] == [0.5, 1.0]


def test_a_reward_without_a_sampled_token_is_kept():
    silent = episode([], [3.0], [])
    batch = token_batch([silent, episode([1], [1.0], [1])], 2, 1, FILLER)
    assert batch.rewards.tolist() == [[3.0], [1.0]] and batch.turn_ends.tolist() == [[0], [1]]


def test_the_sampling_policys_logprobs_are_in_the_batch():
    logprobs = token_batch([episode([1, 1], [0.0], [2])], 1, 3, FILLER).logprobs
    assert torch.equal(logprobs, torch.tensor([[-0.5, -0.5, 0.0]]))
