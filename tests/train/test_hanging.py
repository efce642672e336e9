"""An environment that does not answer: what is said, what is lost, and what can be done."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
import typer

from agentgym_env.client.transports import AsyncInProcessTransport
from agentgym_env.errors import EnvironmentLost
from agentgym_servers.cli import serve
from agentgym_train.config.policy import RolloutLimits
from agentgym_train.config.read import method_config
from agentgym_train.rollout import runner as rollout_runner
from agentgym_train.rollout.actors import ExpertActor
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.runner import RolloutRunner
from tests.train.inprocess import Leaping, Waiting, rollouts


def test_a_task_that_hangs_costs_its_own_episodes_only():
    tasks = ["fine", "sleeps", "good", "starts", "fine", "spins", "good"]
    with RolloutRunner("worlds:Stalls", limits=RolloutLimits(retries=0)) as runner:
        played = runner.collect(ExpertActor, [EpisodeSpec(task, 0) for task in tasks], 3)
    lost = {"sleeps", "spins", "starts"}
    assert [t.outcome == "success" for t in played] == [task not in lost for task in tasks]
    assert {t.attempts for t in played} == {1}
    for trajectory in played:
        assert (trajectory.error is None) == (trajectory.task not in lost)
        if trajectory.error:
            assert f"of task '{trajectory.task}' took longer than " in trajectory.error
            assert "raise step_timeout_s of its class" in trajectory.error


class Gated(AsyncInProcessTransport):
    """A host that answers the steps when a test says so."""

    free: asyncio.Event

    async def send(self, call):
        """Answer when it is time."""
        if call.path == "/v1/step":
            await Gated.free.wait()
        return await super().send(call)


@pytest.mark.parametrize(
    ("tasks", "named"),
    [
        (["5"], "step 1 of task 5 of tests/Guess-v0"),
        (["5", "5", "7"], "step 1 of task 5 of tests/Guess-v0, step 1 of task 7 of tests/Guess-v0"),
        (["1", "2", "3", "4", "5"], "step 1 of task 3 of tests/Guess-v0 and 2 more"),
    ],
)
def test_an_environment_that_is_waited_for_is_logged_in_one_line_and_ever_more_seldom(
    make_host, caplog, tasks, named
):
    async def collected():
        Gated.free = asyncio.Event()
        loop = rollouts(make_host(), ExpertActor, transport=Gated)
        asyncio.get_running_loop().call_later(300, Gated.free.set)
        starts = [EpisodeSpec(task, seed) for seed, task in enumerate(tasks)]
        played = await loop.collect(starts, 5)
        assert loop.concurrency_limits._timer is None, "nothing is left in the event loop"
        return played

    with asyncio.Runner(loop_factory=Leaping) as runner:
        assert {t.outcome for t in runner.run(collected())} == {"success"}
    lines = [line for line in caplog.messages if line.startswith("waiting for the environment")]
    assert [int(line.split()[5]) for line in lines] == [20, 40, 80, 160]
    assert all(line.endswith(named) for line in lines)


def test_a_wait_for_a_place_or_for_the_policy_is_not_one_for_the_environment(make_host, caplog):
    async def collected():
        Gated.free = asyncio.Event()
        Gated.free.set()
        late = asyncio.Event()
        asyncio.get_running_loop().call_later(300, late.set)
        engine = Waiting(lambda prompt, turn: "5", lambda prompt, turn: late)
        loop = rollouts(make_host(), engine.actors(), transport=Gated, env_concurrency=1)
        return await loop.collect([EpisodeSpec("5", seed) for seed in range(3)], 5)

    with asyncio.Runner(loop_factory=Leaping) as runner:
        assert {t.outcome for t in runner.run(collected())} == {"success"}
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_the_message_about_a_server_that_does_not_answer_names_settings_that_exist(monkeypatch):
    monkeypatch.setattr(rollout_runner, "_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "http://127.0.0.1:{1}".format(*silent.getsockname())
        with pytest.raises(EnvironmentLost, match=r"did not answer within 0.3 s") as caught:
            RolloutRunner("tests/Guess-v0", [address])
    said = str(caught.value)
    assert "timeout_s" not in said
    assert "(concurrency)" in said and "servers" in said and "`agentgym serve --isolate`" in said
    words = {"model": "m", "output_dir": "o", "env": "tests/Guess-v0", "servers": [address]}
    for method, data in (("rl", {}), ("sft", {"data": ["d"]}), ("dpo", {"data": ["d"]})):
        config = method_config({"method": method, **words, **data, "concurrency": 8})
        assert (config.concurrency, list(config.servers)) == (8, [address])
    app = typer.Typer()
    app.command()(serve)
    options = typer.main.get_command(app).params
    assert "--isolate" in [name for option in options for name in option.opts]
