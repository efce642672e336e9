"""Which pairs are made of episodes, and which are not."""

from __future__ import annotations

import pytest

from agentgym_env.errors import BadRequest
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_train.config.episodes import PairRules
from agentgym_train.data.pairs import make_pairs


def episode(words: str, success: bool, **changes: object) -> Trajectory:
    """One turn a letter; the last is paid 1 for a success."""
    turns = [Turn(w, w, "seen", float(success and w == words[-1])) for w in words]
    values = {
        "env": "tests/World-v0", "task": "a", "seed": 0, "instruction": "Do.",
        "observation": "First.", "turns": turns, "policy": "p", "horizon": 9,
        "outcome": "success" if success else "failure", "success": success, **changes,
    }  # fmt: skip
    return Trajectory(**values)


def names(pairs: object) -> list[tuple[str, str]]:
    return [
        tuple("".join(t.response for t in x.turns) for x in (p.chosen, p.rejected)) for p in pairs
    ]


def test_a_success_is_preferred_to_a_failure_of_the_same_start():
    pairs = make_pairs([episode("x", False), episode("ab", True)])
    assert names(pairs) == [("ab", "x")]


@pytest.mark.parametrize(
    "other",
    [{"task": "b"}, {"seed": 1}, {"observation": "Other."}, {"instruction": "Do not."},
     {"env": "tests/Other-v0"}],
)  # fmt: skip
def test_episodes_of_different_starts_make_no_pair(other):
    assert make_pairs([episode("ab", True), episode("x", False, **other)]) == []


def test_two_successes_make_a_pair_on_request_alone():
    episodes = [episode("abc", True), episode("ab", True), episode("de", True)]
    assert make_pairs(episodes) == []
    assert names(make_pairs(episodes, PairRules(shorter=True))) == [("ab", "abc"), ("de", "abc")]


def test_two_failures_are_told_apart_by_a_reward_gap_alone():
    better = episode("ab", False, turns=[Turn("a", "a", "", 0.5), Turn("b", "b", "", 0.1)])
    episodes = [episode("x", False), better]
    assert make_pairs(episodes, PairRules(shorter=True)) == []
    assert names(make_pairs(episodes, PairRules(reward_gap=0.6))) == [("ab", "x")]
    assert make_pairs(episodes, PairRules(reward_gap=0.61)) == []


def test_a_lost_episode_an_empty_one_and_the_worlds_luck_are_in_no_pair():
    won = episode("ab", True)
    lost = episode("x", False, outcome="environment_lost")
    empty = episode("", False)
    same_words = episode("ab", False)
    assert make_pairs([won, lost, empty, same_words]) == []


def test_few_pairs_use_many_different_episodes():
    episodes = [*(episode(w, True) for w in "abc"), *(episode(w, False) for w in "xyz")]
    few = names(make_pairs(episodes, PairRules(most=3)))
    assert sorted(few) == [("a", "x"), ("b", "y"), ("c", "z")]
    assert len(make_pairs(episodes, PairRules(most=None))) == 9


def test_repeated_words_count_once():
    episodes = [episode("a", True), episode("a", True), episode("x", False), episode("x", False)]
    assert names(make_pairs(episodes, PairRules(most=None))) == [("a", "x")]


@pytest.mark.parametrize("rules", [{"most": 0}, {"reward_gap": 0.0}, {"reward_gap": -1.0}])
def test_rules_that_mean_nothing_are_refused(rules):
    with pytest.raises(BadRequest):
        PairRules(**rules)
