"""Agents: what the policy is told, and rows in which each sampled token trains exactly once."""

from __future__ import annotations

import pytest

from agentgym_env.actions import action_format
from agentgym_env.errors import BadRequest
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.config.read import config_from
from agentgym_train.engines.base import ScriptedEngine
from agentgym_train.rollout.actors import ExpertActor, MixedActor
from agentgym_train.rollout.agent import Agent, Message, agent_factory, format_of
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.model_actors import model_actor
from tests.train.inprocess import rollouts
from tests.train.templates import APPEND_ONLY, tokenizer_with

PLAIN = action_format("plain")


class Recording(ScriptedEngine):
    """Keeps the prompt of every turn."""

    def __init__(self, script):
        self.prompts = []
        super().__init__(script)

    async def generate(self, prompt_ids, sampling, conversation=None):
        self.prompts.append(list(prompt_ids))
        return await super().generate(prompt_ids, sampling, conversation)


class Nagging(Agent):
    """Never lets the policy act."""

    def begin(self, observation):
        return Message(observation, acts=False)

    def after_non_action(self, text):
        return Message("why?", acts=False)


async def played(host, agent, answers, horizon=9, template="chatml", turn_max=64, form=PLAIN,
                 max_tokens=4096):  # fmt: skip
    """(trajectory, prompts as text, prompts as ids, chat) of one episode of task 5."""
    chat = Chat(tokenizer_with(APPEND_ONLY[template]), "Guess.")
    engine = Recording(lambda prompt, turn: chat.response_ids(answers[turn]))
    config = PolicyConfig(
        model="p", turn_max_tokens=turn_max, max_tokens=max_tokens, agent=agent,
        action_format=form.name,
    )  # fmt: skip
    actors = model_actor(engine, chat, config)
    (trajectory,) = await rollouts(host, actors).collect([EpisodeSpec("5", 0)], horizon)
    assert not engine.live
    return trajectory, [chat.text_of(ids) for ids in engine.prompts], engine.prompts, chat


AGENTS = ["plain", "plan_then_act", "reflect", "window:2", "window:3", "window:8", "summary:1",
          "summary:3"]  # fmt: skip


@pytest.mark.parametrize("template", APPEND_ONLY)
@pytest.mark.parametrize("turn_max", [64, 3])
@pytest.mark.parametrize("agent", AGENTS)
async def test_each_sampled_token_trains_once_in_the_context_it_was_sampled_in(
    make_host, agent, template, turn_max
):
    answers = [f"{n} is  é 雪 my guess" for n in range(40)]
    trajectory, _, prompts, chat = await played(
        make_host(), agent, answers, template=template, turn_max=turn_max
    )
    turns = 0
    for row in trajectory.rows:
        start = 0
        assert len(row.loss_mask) == len(row.completion_ids) == len(row.versions)
        for end in row.turn_ends:
            sampled = row.completion_ids[start:end]
            own = [t for t, m in zip(sampled, row.loss_mask[start:end], strict=True) if m]
            first = end - len(own)
            assert row.loss_mask[start:end] == [0] * (first - start) + [1] * len(own)
            assert row.prompt_ids + row.completion_ids[:first] == prompts[turns]
            assert chat.text_of(own) == trajectory.turns[turns].response
            start, turns = end, turns + 1
        assert not any(row.loss_mask[start:])
    assert turns == len(trajectory.turns) == len(prompts)


async def test_a_plan_is_a_turn_without_a_step_and_does_not_count_against_the_horizon(make_host):
    trajectory, texts, _, _ = await played(
        make_host(), "plan_then_act", ["guess up", "1", "2"], horizon=2
    )
    assert [(t.response, t.action) for t in trajectory.turns] == [
        ("guess up", ""), ("1", "1"), ("2", "2"),
    ]  # fmt: skip
    assert trajectory.outcome == "horizon" and len(trajectory.rows) == 1
    assert "Do not act yet" in texts[0] and "carry out the plan" in texts[1]
    assert "guess up" in texts[2] and "'1' is wrong" in texts[2]


async def test_a_failed_episode_is_played_again_with_its_lesson_alone(make_host):
    trajectory, texts, _, _ = await played(
        make_host(), "reflect", ["1", "2", "try <|im_end|> five", "5"], horizon=4
    )
    assert trajectory.outcome == "success" and trajectory.success and trajectory.reward == 1.0
    assert [(t.response, t.action) for t in trajectory.turns] == [
        ("1", "1"), ("2", "2"), ("try <|im_end|> five", ""), ("5", "5"),
    ]  # fmt: skip
    assert "'2' is wrong" in texts[2] and "what went wrong" in texts[2]
    assert "earlier trial:\ntry <|im_end|> five" in texts[3] and "is wrong" not in texts[3]
    assert [len(row.turn_ends) for row in trajectory.rows] == [3, 1]
    assert trajectory.turns[2].observation == trajectory.observation


async def test_a_solved_episode_is_not_played_again_and_no_trial_follows_the_second(make_host):
    solved, *_ = await played(make_host(), "reflect", ["5"])
    assert (len(solved.turns), len(solved.rows)) == (1, 1)
    failed, *_ = await played(make_host(), "reflect", ["1", "hm", "2"], horizon=2)
    assert (failed.outcome, len(failed.turns)) == ("horizon", 3)


@pytest.mark.parametrize("horizon", [1, 2, 5, 6])
async def test_two_trials_take_no_more_turns_than_one(make_host, horizon):
    first = -(-horizon // 2)
    answers = ["1"] * first + ["hm"] * (horizon > first) + ["2"] * (horizon - first)
    trajectory, *_ = await played(make_host(), "reflect", answers, horizon=horizon)
    assert [turn.response for turn in trajectory.turns] == answers
    assert sum(turn.action != "" for turn in trajectory.turns) == horizon


async def test_a_window_holds_the_first_observation_and_the_newest_exchanges(make_host):
    guesses = ["1", "2", "3", "4", "6", "7", "8", "9"]
    trajectory, texts, _, _ = await played(make_host(), "window:4", guesses, horizon=8)
    assert all("Which number?" in text for text in texts)
    # Up to four exchanges; then the older two go, and the next context begins with two of them.
    assert [len(row.turn_ends) for row in trajectory.rows] == [4, 2, 2]
    held = [[n for n in guesses if f"'{n}' is wrong" in text] for text in texts]
    assert held[3] == ["1", "2", "3"]
    assert held[4] == ["2", "3", "4"], "the observation that the first kept turn answers is there"
    assert held[6] == ["4", "6", "7"]
    assert (
        "[2 earlier turns are left out]" in texts[4]
        and "[4 earlier turns are left out]" in texts[6]
    )


async def test_a_summary_stands_for_what_it_sums_up(make_host):
    answers = ["1", "2", "low are wrong", "3", "5"]
    trajectory, texts, _, _ = await played(make_host(), "summary:2", answers)
    assert trajectory.outcome == "success"
    assert [t.action for t in trajectory.turns] == ["1", "2", "", "3", "5"]
    assert "Sum up" in texts[2] and "'1' is wrong" in texts[2]
    assert "low are wrong" in texts[3] and "'1' is wrong" not in texts[3]
    assert texts[3].count("'2' is wrong") == 1 and "Which number?" in texts[3]
    assert [len(row.turn_ends) for row in trajectory.rows] == [3, 2]


async def test_a_context_that_is_cut_gives_room_for_more_tokens(make_host):
    answers = [str(n % 5) for n in range(40)]
    room = 220
    short, *_ = await played(make_host(), "plain", answers, horizon=30, max_tokens=room)
    long, *_ = await played(make_host(), "window:2", answers, horizon=30, max_tokens=room)
    assert (short.outcome, long.outcome) == ("token_budget", "horizon")
    assert all(len(r.prompt_ids) + len(r.completion_ids) <= room + 40 for r in long.rows)


async def test_an_agent_that_never_acts_is_refused(make_host):
    with pytest.raises(ExceptionGroup) as raised:
        await played(make_host(), "tests.train.test_agents:Nagging", ["hm"] * 40)
    assert raised.group_contains(BadRequest, match="without an environment step")


def test_an_agent_is_named_in_the_config_with_its_size_or_as_a_class():
    needed = {"model": "hub/id", "env": "textcraft", "output_dir": "x"}
    for name in (*AGENTS, "react", "act_only", "tests.train.test_agents:Nagging"):
        assert config_from({**needed, "agent": name}).agent == name
    for name, said in (
        ("planner", "no agent 'planner'; choose from plain"),
        ("window:x", "write, for example, window:8"),
        ("window:1", "at least 2 exchanges, got 1"),
        ("windw:2", "did you mean window\\?"),
        ("reflct", "did you mean reflect\\?"),
        ("summary:0", "at least 1 exchange"),
        ("plain:3", "package.module:Class"),
        ("no_such.module:Class", "package.module:Class"),
        ("tests.train.test_agents:Nobody", "package.module:Class"),
    ):
        with pytest.raises(BadRequest, match=said):
            config_from({**needed, "agent": name})


def test_an_agent_that_is_an_action_format_takes_no_other():
    assert format_of("react", "plain").name == format_of("react", "react").name == "react"
    assert format_of("act_only", "plain").name == "act"
    assert format_of("window:4", "react").name == "react"
    with pytest.raises(BadRequest, match="leave action_format away"):
        format_of("act_only", "react")


def test_agents_of_two_episodes_share_nothing():
    make = agent_factory("window:2", PLAIN)
    one, two = make(), make()
    one.begin("a")
    two.begin("b")
    assert one.observed("x").context_reset is None
    assert two.observed("y").context_reset is None
    assert "a" in one.observed("z").context_reset.opening


async def test_a_model_goes_on_from_the_actions_of_another_policy(make_host):
    """Its prompts are the contexts that training rows of the mixed episode have."""
    chat = Chat(tokenizer_with(APPEND_ONLY["chatml"]), "Guess.")
    engine = Recording(lambda prompt, turn: chat.response_ids(f"guess {turn}"))
    config = PolicyConfig(model="p", turn_max_tokens=64, max_tokens=4096)
    models = model_actor(engine, chat, config)
    (episode,) = await rollouts(
        make_host(), lambda: MixedActor(ExpertActor(), models(), 0.5, PLAIN)
    ).collect([EpisodeSpec("5", 0)], 9)
    own = [n for n, turn in enumerate(episode.turns) if turn.info.get("loss") is False]
    assert 0 < len(own) < len(episode.turns) and len(engine.prompts) == len(own)
    for prompt, number in zip(engine.prompts, own, strict=True):
        shown = chat.text_of(prompt)
        for turn in episode.turns[:number]:
            assert turn.response in shown
        assert chat.start(episode.observation) == prompt[: len(chat.start(episode.observation))]
    assert not engine.live


async def test_a_plan_cannot_be_taken_by_another_policy(make_host):
    chat = Chat(tokenizer_with(APPEND_ONLY["chatml"]), "Guess.")
    engine = ScriptedEngine(lambda prompt, turn: chat.response_ids("guess 1"))
    models = model_actor(engine, chat, PolicyConfig(model="p", agent="plan_then_act"))
    mixed = rollouts(make_host(), lambda: MixedActor(ExpertActor(), models(), 0.01, PLAIN))
    with pytest.raises(ExceptionGroup) as caught:
        await mixed.collect([EpisodeSpec("5", 0)], 9)
    assert "mix policies with the agent plain" in str(caught.value.exceptions[0])
