"""Estimators whose step is a turn, against slow references and by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentgym_train.algorithms.gae import GiGPO, TurnGAE, TurnReturns
from tests.train.ragged import (
    Episode,
    PlayedTurn,
    Step,
    cases,
    close,
    deviation,
    each_turn,
    mean,
    steps,
    whitened,
)

shares = st.sampled_from([0.0, 0.5, 0.95, 1.0])


def turn_returns_reference(episode, gamma):
    """G_k = r_k + gamma G_{k+1} over the turns with a sampled token."""
    returns, after = [], 0.0
    for reward in reversed(episode.turn_rewards()):
        after = reward + gamma * after
        returns.insert(0, after)
    return returns


def by_turn(step, numbers):
    """Numbers a turn with a token, as numbers a token."""
    named = {
        (id(e), turn): x
        for e, row in zip(step.episodes, numbers, strict=True)
        for turn, x in zip(e.acted() if row else [], row, strict=True)
    }
    return each_turn(step, named)


@cases
@given(steps(), shares)
def test_turn_returns_are_measured_by_the_groups_same_turn(step, gamma):
    numbers = {}
    for group in step.groups():
        returns = {id(e): turn_returns_reference(e, gamma) for e in group}
        for episode in group:
            for k, turn in enumerate(episode.acted()):
                there = [row[k] for row in returns.values() if len(row) > k]
                if len(there) > 1:
                    numbers[id(episode), turn] = returns[id(episode)][k] - mean(there)
    found = TurnReturns(gamma=gamma).advantages(step.batch())
    close(found, step, each_turn(step, numbers))


@cases
@given(steps(), shares)
def test_turn_returns_may_be_whitened_over_the_step(step, gamma):
    raw = [turn_returns_reference(e, gamma) if e.trainable else [] for e in step.episodes]
    found = TurnReturns(gamma=gamma, baseline="batch").advantages(step.batch())
    close(found, step, by_turn(step, whitened(raw)))


def turn_values(episode):
    """The value before the first sampled token of each turn that has one."""
    first = {}
    for place, turn in episode.sampled:
        first.setdefault(turn, episode.values[place])
    return list(first.values())


def turn_gae_reference(episode, gamma, lam, bootstrap):
    rewards, values = episode.turn_rewards(), turn_values(episode)
    advantages, after = [], 0.0
    for k in reversed(range(len(rewards))):
        last = k == len(rewards) - 1
        following = 0.0 if last else values[k + 1]
        if last and bootstrap and episode.truncated:
            following = values[k]
        after = rewards[k] + gamma * following - values[k] + gamma * lam * after
        advantages.insert(0, after)
    return advantages


@cases
@given(steps(), shares, shares, st.booleans())
def test_turn_gae_whitens_gae_over_turns(step, gamma, lam, bootstrap):
    algorithm = TurnGAE(gamma=gamma, lam=lam, bootstrap_truncated=bootstrap)
    raw = [
        turn_gae_reference(e, gamma, lam, bootstrap) if e.trainable else [] for e in step.episodes
    ]
    close(algorithm.advantages(step.batch()), step, by_turn(step, whitened(raw)))

    targets = algorithm.critic_targets(step.batch())
    returns = torch.zeros(targets.returns.shape, dtype=torch.float64)
    learned = torch.zeros(targets.mask.shape, dtype=torch.bool)
    for i, (episode, numbers) in enumerate(zip(step.episodes, raw, strict=True)):
        starts = {turn: place for place, turn in reversed(episode.sampled)}
        values = turn_values(episode)
        for k, turn in enumerate(episode.acted() if numbers else []):
            returns[i, starts[turn]] = numbers[k] + values[k]
            learned[i, starts[turn]] = True
    torch.testing.assert_close(targets.returns.double(), returns, rtol=1e-5, atol=1e-6)
    assert torch.equal(targets.mask, learned)


def against(value, others, *, scale):
    if len(others) < 2:
        return 0.0
    return (value - mean(others)) / (deviation(others) + 1e-4 if scale else 1.0)


@cases
@given(steps(), shares, st.sampled_from([0.0, 1.0, 2.5]), st.booleans())
def test_gigpo_adds_a_turns_distance_to_those_that_met_its_state(step, gamma, omega, scale):
    numbers = {}
    for group in step.groups():
        met: dict[int, list[float]] = {}
        for episode in group:
            for turn, value in zip(
                episode.acted(), turn_returns_reference(episode, gamma), strict=True
            ):
                met.setdefault(episode.turns[turn].state, []).append(value)
        for episode in group:
            whole = against(episode.ret, [e.ret for e in group], scale=scale)
            for turn, value in zip(
                episode.acted(), turn_returns_reference(episode, gamma), strict=True
            ):
                same = met[episode.turns[turn].state]
                numbers[id(episode), turn] = whole + omega * against(value, same, scale=scale)
    found = GiGPO(omega=omega, gamma=gamma, scale=scale).advantages(step.batch())
    close(found, step, each_turn(step, numbers))


def walk(*turns) -> Episode:
    """(state, reward) of turns of one token, an observation token between."""
    return Episode([PlayedTurn(min(i, 1), 1, r, s) for i, (s, r) in enumerate(turns)])


def test_turn_returns_by_hand():
    # Returns at turn 0: 0.5 * 1 and 0; at turn 1: 1 and 0.
    step = Step([walk((0, 0.0), (1, 1.0)), walk((0, 0.0), (2, 0.0))], 2)
    found = TurnReturns(gamma=0.5).advantages(step.batch())
    assert found.tolist() == [[0.25, 0.0, 0.5], [-0.25, 0.0, -0.5]]


def test_a_turn_that_one_episode_alone_reaches_has_nothing_to_be_compared_with():
    step = Step([walk((0, 0.0), (1, 1.0)), walk((0, 0.0))], 2)
    assert TurnReturns(gamma=1.0).advantages(step.batch())[0].tolist() == [0.5, 0.0, 0.0]


def test_turn_gae_takes_values_at_the_turns_first_tokens():
    turns = [PlayedTurn(0, 2, 1.0), PlayedTurn(1, 2, 2.0)]
    episode = Episode(turns, values=[0.5, 9.0, 9.0, 1.5, 9.0])
    # lambda 0, gamma 1: 1 + 1.5 - 0.5 = 2 and 2 - 1.5 = 0.5, so returns 2.5 and 2.
    targets = TurnGAE(gamma=1.0, lam=0.0).critic_targets(Step([episode], 1).batch())
    assert targets.returns.tolist() == [[2.5, 0.0, 0.0, 2.0, 0.0]]
    assert targets.mask.tolist() == [[True, False, False, True, False]]
    # Two turns whitened: +-1/sqrt(2), on both tokens of each.
    advantages = TurnGAE(gamma=1.0, lam=0.0).advantages(Step([episode], 1).batch())
    half = 0.5**0.5
    assert advantages[0].tolist() == pytest.approx([half, half, 0.0, -half, -half])


def test_gigpo_compares_turns_that_met_the_same_state_at_different_times():
    # State 7 is met at turn 0 by the first (return 1) and at turn 1 by the second (return 0).
    first, second = walk((7, 1.0)), walk((8, 0.0), (7, 0.0))
    found = GiGPO(gamma=1.0).advantages(Step([first, second], 2).batch())
    # Episodes +-0.5; in state 7 another +-0.5; state 8 is met once.
    assert found.tolist() == [[1.0, 0.0, 0.0], [-0.5, 0.0, -1.0]]


def test_gigpo_keeps_states_of_different_groups_apart():
    step = Step([walk((7, 1.0)), walk((8, 1.0)), walk((7, 0.0)), walk((8, 0.0))], 2)
    assert not GiGPO().advantages(step.batch()).any()
