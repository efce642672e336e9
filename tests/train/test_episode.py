"""One episode: what counts against the horizon, what a turn says, and which trial counts."""

from __future__ import annotations

import asyncio
import enum

import pytest

from agentgym_env.actions import ActionError
from agentgym_env.client.aio import AsyncEnvClient, AsyncSession
from agentgym_env.client.transports import AsyncInProcessTransport
from agentgym_env.errors import ConfigError
from agentgym_env.text_env import TaskSet, TextEnv
from agentgym_servers.host.inline_host import in_process_host
from agentgym_train.rollout.actors import Actor, ActorOutput
from agentgym_train.rollout.agent import Agent
from agentgym_train.rollout.episode import Episode, EpisodeSpec
from agentgym_train.rollout.limits import ConcurrencyLimits
from agentgym_train.rollout.run_episode import EpisodeSetup, run_episode
from agentgym_train.rollout.tool_calls import PlannedCall, ToolCalls
from tests.train.test_agents import played


class Counting(TextEnv):
    """Each action earns 1.0; `end` ends the episode."""

    instruction = "Act."
    tasks = TaskSet({"train": ["t"]})

    def _reset(self, task):
        return "go"

    def _step(self, action):
        return f"did {action}", 1.0, action == "end"


class Scripted(Actor):
    """Takes what a list says; after its end it asks for as many trials as it has."""

    name = "scripted"

    def __init__(self, *trials):
        self.lists = [iter(outputs) for outputs in trials]
        self.trials = len(trials)
        self.seen = []

    async def begin(self, session, observation, seed):
        pass

    async def act(self):
        action = next(self.lists[0], None)
        return None if action is None else ActorOutput(str(action), action)

    async def observe(self, observation, results=()):
        self.seen.append((observation, list(results)))

    async def reflection(self, outcome, observation):
        del self.lists[0]
        return "again" if self.lists else None

    async def begin_again(self, reflection, observation):
        pass

    async def end(self):
        return []


class Stopping(AsyncInProcessTransport):
    """Answers so many steps, and no further one."""

    def __init__(self, host, steps):
        super().__init__(host)
        self.left = steps
        self.stopped = asyncio.Event()

    async def send(self, call):
        if call.path.startswith("/v1/step"):
            self.left -= 1
            if self.left < 0:
                self.stopped.set()
                await asyncio.Event().wait()
        return await super().send(call)


def calls(*actions):
    """A response with these calls; None is a malformed one."""
    return ToolCalls.from_calls([PlannedCall("act", a, "" if a else "bad call") for a in actions])


def client_of(transport=None):
    host = in_process_host(Counting, "x/Counting-v0")
    return AsyncEnvClient(transport or AsyncInProcessTransport(host))


async def result_of(actor, horizon):
    """What `run_episode` makes of an episode."""
    limits = ConcurrencyLimits()
    with limits.episode("t") as clock:
        setup = EpisodeSetup(client_of(), EpisodeSpec("t", 0), horizon, limits, clock)
        return await run_episode(actor, setup)


async def turns_of(actor, horizon):
    """(outcome, turns) of an episode."""
    client = client_of()
    session = await client.open()
    episode = Episode(actor, EpisodeSpec("t", 0), horizon, 0)
    outcome = await episode.play(session)
    await session.close()
    await client.close()
    return outcome, episode.turns


@pytest.mark.parametrize(
    ("outputs", "horizon", "outcome", "steps"),
    [
        (["a", "b", "c"], 2, "horizon", ["a", "b"]),
        ([calls("a", "b", "c"), "d"], 4, "horizon", ["a", "b", "c", "d"]),
        ([calls("a", "b", "c"), "d"], 2, "horizon", ["a", "b"]),
        ([ActionError("none"), calls(None, None), "a", "b"], 3, "horizon", ["", "", "", "a"]),
        ([calls("a", None, "b"), "c"], 3, "horizon", ["a", "", "b", "c"]),
        ([calls("a", "end", None, "b")], 9, "success", ["a", "end"]),
        ([calls("a", "b", None)], 2, "horizon", ["a", "b"]),
    ],
)
async def test_the_horizon_counts_actions_and_responses_without_one(
    outputs, horizon, outcome, steps
):
    ended, turns = await turns_of(Scripted(outputs), horizon)
    made = [
        row["action"] for turn in turns for row in turn.info.get("calls", [{"action": turn.action}])
    ]
    assert (ended, made) == (outcome, steps)


async def test_a_malformed_call_after_the_end_leaves_the_turn_valid():
    _, (turn,) = await turns_of(Scripted([calls("a", "end", None)]), 9)
    assert not turn.info["invalid_action"] and turn.reward == 2.0


async def test_the_calls_that_were_answered_stay_in_a_turn_that_is_interrupted():
    transport = Stopping(in_process_host(Counting, "x/Counting-v0"), steps=2)
    session = await client_of(transport).open()
    episode = Episode(Scripted([calls("a", None, "b", "c")]), EpisodeSpec("t", 0), 9, 0)
    playing = asyncio.create_task(episode.play(session))
    await transport.stopped.wait()
    turn = episode.unanswered()
    playing.cancel()
    assert turn.reward == 2.0 and turn.observation == "did a\n\nbad call\n\ndid b"
    assert [row["action"] for row in turn.info["calls"]] == ["a", "", "b"]
    with pytest.raises(asyncio.CancelledError):
        await playing


async def test_the_score_is_that_of_the_last_trial():
    scores = []
    for actor in (Scripted(["a", "b"]), Scripted(["a", "b"], []), Scripted(["a", "b"], ["a"])):
        result = await result_of(actor, 9)
        scores.append((result.score, sum(turn.reward for turn in result.turns)))
    assert scores == [(2.0, 2.0), (0.0, 0.0), (1.0, 1.0)]


class Texts(Agent):
    """Forgets that methods return messages."""

    def observed(self, observation):
        return observation


async def test_an_agent_whose_method_returns_a_text_is_named(make_host):
    with pytest.raises(ExceptionGroup) as found:
        await played(make_host(), f"{__name__}:Texts", ["1", "2"])
    expected = "method of the agent Texts returned a str; return a Message of agentgym_train"
    assert found.group_contains(ConfigError, match=expected)


class Move(str, enum.Enum):  # noqa: UP042
    """An action that is a text and prints as `Move.LEFT`."""

    LEFT = "left"


async def test_an_action_that_is_a_kind_of_text_is_stored_as_its_text():
    _, (turn,) = await turns_of(Scripted([Move.LEFT]), 1)
    assert (type(turn.action), turn.action) == (str, "left")


class Peeking(Scripted):
    """Reads the environment in its own way."""

    async def begin(self, session, observation, seed):
        self.session = session


async def test_an_actor_gets_the_session_itself():
    actor = Peeking(["a"])
    await result_of(actor, 1)
    assert isinstance(actor.session, AsyncSession)
