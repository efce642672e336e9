"""What is kept of episodes, and what for reasons is not."""

from __future__ import annotations

import pytest

from agentgym_env.errors import BadRequest
from agentgym_env.trajectory import Tokens, Trajectory
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.data.collect import filter_episodes
from agentgym_train.data.tokenize import tokens_in
from agentgym_train.rollout.chat import Chat
from tests.train.small import save_tiny_policy, textcraft_tokenizer
from tests.train.test_formats import episode

WON, LOST_GAME = episode("ab"), episode("abc", False)


def kept(*episodes: Trajectory, **rules: object) -> list[str]:
    return [
        "".join(t.action for t in e.turns)
        for e in filter_episodes(episodes, EpisodeFilter(**rules)).selected
    ]


def test_without_rules_everything_that_teaches_is_kept():
    gone = episode("ab", False, outcome="environment_lost")
    sifted = filter_episodes([WON, LOST_GAME, gone, episode("")], EpisodeFilter())
    assert sifted.selected == [WON, LOST_GAME]
    assert sifted.left_out == {"lost": 1, "under 1 turns": 1}


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ({"success": True}, ["ab"]),
        ({"min_reward": 0.5}, ["ab"]),
        ({"min_turns": 3}, ["abc"]),
        ({"max_turns": 2}, ["ab"]),
    ],
)
def test_a_rule_leaves_out_what_breaks_it(rules, left):
    assert kept(WON, LOST_GAME, **rules) == left


def test_of_the_same_task_and_actions_the_first_is_kept():
    others = [
        episode("ab", seed=1, observation="Another list."),
        episode("ab", task="plank"),
        episode("ab", env="a/B-v0"),
        episode("ba"),
    ]
    sifted = filter_episodes([WON, *others], EpisodeFilter(unique=True))
    assert sifted.selected == [WON, *others[1:]]
    assert sifted.reasons() == " (left out: 1 repeated)"


def test_what_is_left_out_for_its_length_hides_no_later_one():
    sampled = [
        episode("ab", seed=n, tokens=Tokens([1] * size, [2], [1], [0.0], [0], [1]))
        for n, size in enumerate((30, 10))
    ]
    sifted = filter_episodes(sampled, EpisodeFilter(unique=True, max_episode_tokens=20))
    assert [t.seed for t in sifted.selected] == [1]


def test_tokens_are_those_of_the_longest_context():
    rows = [Tokens([1] * n, [2], [1], [0.0], [0], [1]) for n in (3, 9, 5)]
    cut = episode("ab", tokens=rows[0], further_rows=rows[1:])
    assert filter_episodes([cut], EpisodeFilter(max_episode_tokens=10)).selected == [cut]
    assert filter_episodes([cut], EpisodeFilter(max_episode_tokens=9)).left_out == {
        "over 9 tokens": 1
    }


def test_tokens_that_nobody_sampled_are_counted_by_a_tokenizer(tmp_path):
    with pytest.raises(BadRequest, match="--tokenizer"):
        filter_episodes([WON], EpisodeFilter(max_episode_tokens=10))
    name = save_tiny_policy(tmp_path)
    chat = Chat(textcraft_tokenizer(), WON.instruction)
    exact = tokens_in(WON, chat)
    assert filter_episodes(
        [WON], EpisodeFilter(max_episode_tokens=exact, tokenizer=name)
    ).selected == [WON]
    assert (
        filter_episodes([WON], EpisodeFilter(max_episode_tokens=exact - 1, tokenizer=name)).selected
        == []
    )


@pytest.mark.parametrize(
    "rules", [{"max_turns": 0}, {"max_episode_tokens": 0}, {"min_turns": -1},
              {"min_turns": 3, "max_turns": 2}],
)  # fmt: skip
def test_rules_that_keep_nothing_are_refused(rules):
    with pytest.raises(BadRequest):
        EpisodeFilter(**rules)
