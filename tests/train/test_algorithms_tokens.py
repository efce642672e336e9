"""REINFORCE++ and PPO, whose step is a sampled token, against slow references and by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentgym_env.errors import BadRequest
from agentgym_train.algorithms import TokenBatch, make_algorithm
from agentgym_train.algorithms.gae import PPO
from agentgym_train.algorithms.grpo import ReinforcePP
from tests.train.ragged import Episode, PlayedTurn, Step, cases, close, steps, whitened

shares = st.sampled_from([0.0, 0.5, 0.9, 1.0])


def of_sampled(episode, numbers):
    return [numbers[place] for place, _ in episode.sampled] if numbers else []


def returns_reference(episode, gamma, kl):
    """G_t = r_t - kl (log pi - log pi_ref) + gamma G_next, from the last token to the first."""
    policy = of_sampled(episode, episode.policy_logprobs)
    reference = of_sampled(episode, episode.ref_logprobs)
    returns, after = [], 0.0
    for reward, p, q in reversed(
        list(zip(episode.token_rewards(), policy, reference, strict=True))
    ):
        after = reward - kl * (p - q) + gamma * after
        returns.insert(0, after)
    return returns


def gae_reference(episode, gamma, lam, bootstrap):
    """GAE of the episode with its observation tokens taken out."""
    rewards, values = episode.token_rewards(), of_sampled(episode, episode.values)
    advantages, after = [], 0.0
    for t in reversed(range(len(rewards))):
        last = t == len(rewards) - 1
        following = 0.0 if last else values[t + 1]
        if last and bootstrap and episode.truncated:
            following = values[t]
        after = rewards[t] + gamma * following - values[t] + gamma * lam * after
        advantages.insert(0, after)
    return advantages


def teaching(step, numbers_of):
    return [numbers_of(e) if e.trainable else [] for e in step.episodes]


@cases
@given(steps(), shares, st.sampled_from([0.0, 0.25]))
def test_reinforce_pp_whitens_the_returns_of_sampled_tokens(step, gamma, kl):
    expected = whitened(teaching(step, lambda e: returns_reference(e, gamma, kl)))
    close(ReinforcePP(gamma=gamma, beta=kl).advantages(step.batch()), step, expected)


@cases
@given(steps(), shares, shares, st.booleans())
def test_ppo_whitens_gae_with_the_observations_taken_out(step, gamma, lam, bootstrap):
    algorithm = PPO(gamma=gamma, lam=lam, bootstrap_truncated=bootstrap)
    raw = teaching(step, lambda e: gae_reference(e, gamma, lam, bootstrap))
    close(algorithm.advantages(step.batch()), step, whitened(raw))

    targets = algorithm.critic_targets(step.batch())
    sums = [
        [a + v for a, v in zip(numbers, of_sampled(e, e.values) if numbers else [], strict=True)]
        for e, numbers in zip(step.episodes, raw, strict=True)
    ]
    close(targets.returns, step, sums)
    assert torch.equal(targets.mask, step.batch().trained)


def two_turns(reward) -> Episode:
    """Two sampled tokens, two observed, one sampled with the reward, then two observed."""
    turns = [PlayedTurn(0, 2, 0.0), PlayedTurn(2, 1, reward)]
    return Episode(turns, tail=2, values=[0.0] * 7)


def test_the_reward_reaches_the_first_sampled_token_though_an_observation_closes_the_episode():
    batch = Step([two_turns(1.0), two_turns(0.0)], 2).batch()
    assert batch.loss_mask[0].tolist() == [1, 1, 0, 0, 1, 0, 0]
    assert ReinforcePP().returns(batch).tolist() == [[1, 1, 1], [0, 0, 0]]
    assert PPO().critic_targets(batch).returns[0].tolist() == [1, 1, 0, 0, 1, 0, 0]
    # Three ones and three zeros: mean 1/2, variance 6/4/5, so a one becomes sqrt(5/6).
    for algorithm in (ReinforcePP(), PPO()):
        advantages = algorithm.advantages(batch)
        assert advantages[:, 0].tolist() == pytest.approx([(5 / 6) ** 0.5, -((5 / 6) ** 0.5)])


def test_a_return_is_discounted_by_sampled_tokens_alone():
    batch = Step([two_turns(1.0)], 1).batch()
    assert ReinforcePP(gamma=0.5).returns(batch).tolist() == [[0.25, 0.5, 1.0]]


def test_gae_reads_the_next_sampled_tokens_value():
    # Values 1, 2 (turn 0) and 4 (turn 1), reward 8 at the end, lambda 0: r + V_next - V.
    episode = two_turns(8.0)
    episode.values = [1.0, 2.0, 0.0, 0.0, 4.0, 0.0, 0.0]
    targets = PPO(lam=0.0).critic_targets(Step([episode], 1).batch())
    assert targets.returns[0].tolist() == [2.0, 4.0, 0.0, 0.0, 8.0, 0.0, 0.0]


@pytest.mark.parametrize(("bootstrap", "last"), [(False, 0.0), (True, 4.0)])
def test_a_cut_off_episode_may_go_on_in_the_critics_mind(bootstrap, last):
    episode = two_turns(0.0)
    episode.values = [1.0, 2.0, 0.0, 0.0, 4.0, 0.0, 0.0]
    episode.truncated = True
    batch = Step([episode], 1).batch()
    targets = PPO(bootstrap_truncated=bootstrap).critic_targets(batch)
    assert targets.returns[0, 4] == last
    ended = replace(batch, truncated=torch.tensor([False]))
    assert PPO(bootstrap_truncated=True).critic_targets(ended).returns[0, 4] == 0.0


def test_a_reward_of_a_turn_without_tokens_goes_to_the_sampled_token_before_or_the_next():
    turns = [PlayedTurn(0, 0, 1.0), PlayedTurn(1, 2, 0.0), PlayedTurn(1, 0, 4.0)]
    batch = Step([Episode([*turns, PlayedTurn(1, 1, 16.0)])], 1).batch()
    # Sampled tokens earn 1, 4 and 16.
    assert ReinforcePP().returns(batch).tolist() == [[21.0, 20.0, 16.0]]


def test_the_divergence_from_the_reference_is_part_of_the_reward():
    episode = two_turns(1.0)
    # Both policies are computed by the trainer; the engine's figures have no part in it.
    episode.logprobs = [-7.0, -7.0, 0.0, 0.0, -7.0, 0.0, 0.0]
    episode.policy_logprobs = [-1.0, -1.0, 0.0, 0.0, -2.0, 0.0, 0.0]
    episode.ref_logprobs = [-1.0, -3.0, 0.0, 0.0, -1.0, 0.0, 0.0]
    batch = Step([episode], 1).batch()
    # Rewards 0, -0.1 * 2, 1 + 0.1 * 1.
    found = ReinforcePP(beta=0.1).returns(batch)[0].tolist()
    assert found == pytest.approx([0.9, 0.9, 1.1])
    assert ReinforcePP(beta=0.1).needs_reference and not ReinforcePP().needs_reference


@pytest.mark.parametrize(
    ("name", "values", "missing"),
    [
        ("ppo", {}, "values"),
        ("turn_gae", {}, "values"),
        ("reinforce_pp", {"beta": 0.1}, "ref_logprobs"),
    ],
)
def test_a_batch_without_what_is_needed_says_so(name, values, missing):
    whole = Step([two_turns(1.0)], 1).batch()
    batch: TokenBatch = replace(whole, values=None, ref_logprobs=None)
    with pytest.raises(BadRequest, match=f"needs .*{missing}, but the batch has none"):
        make_algorithm({"type": name, **values}).advantages(batch)
