"""How a batch is filled: groups are rejected and replaced, go on, or grow old and are dropped."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from agentgym_env.errors import ConfigError
from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.config.checks import object_of
from agentgym_train.rollout.buffer import RolloutBuffer
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.gates import GATES, AdmissionGate, InformativeGate
from agentgym_train.rollout.groups import Group
from tests.train.inprocess import Waiting, rollouts
from waiting import turned


def episode(task, reward, outcome="success", length=4, version=0) -> Trajectory:
    ids = list(range(length))
    return Trajectory(
        env="e", task=task, seed=0, instruction="", observation="o",
        turns=[Turn("r", "a", "o", reward)], outcome=outcome, policy="p", horizon=1,
        tokens=Tokens([7], ids, [1] * length, [0.0] * length, [version] * length, [length]),
    )  # fmt: skip


class Runner:
    """Plays tasks whose names say whether their groups have different returns.

    A group with one of the `gates` ends when that is set; others end at once.
    """

    concurrency = 256

    def __init__(self, gates=None):
        self.gates = gates or {}
        self.begun = []

    async def collecting(self, actors, specs, horizon, *, on_episode, step, **_):
        self.begun.append((specs[0].task, step))
        gate = self.gates.get(specs[0].task)
        await asyncio.sleep(0) if gate is None else await gate.wait()
        found = []
        for spec in specs:
            reward = float(spec.sample % 2) if "good" in spec.task else 0.0
            length = 90 if "long" in spec.task else 4
            found.append(episode(spec.task, reward, length=length, version=step))
            on_episode(found[-1])
        return found


def buffer_of(*runners, gate=AdmissionGate(), wanted=2, max_age=0):  # noqa: B008
    policy = SimpleNamespace(actors=lambda: None, instruction="")
    return RolloutBuffer(
        [SimpleNamespace(runner=runner, policy=policy) for runner in runners],
        gate,
        wanted=wanted,
        further=gate.max_replaced(wanted),
        group_size=2,
        max_age=max_age,
        specs=lambda g: [EpisodeSpec(g.task, g.number, sample=i, env=g.env) for i in range(2)],
        returns=lambda episodes: [t.reward for t in episodes],
    )


class Draws:
    """Named draws, each an environment's number and a name, until they are used up."""

    def __init__(self, *names):
        self.names = [(0, name) if isinstance(name, str) else name for name in names]
        self.number = 0

    def take(self, count):
        found = [
            Group(env, task, self.number + i)
            for i, (env, task) in enumerate(self.names[self.number : self.number + count])
        ]
        self.number += len(found)
        return found


async def step_of(buffer, step, draws, steps=9):
    needed = await buffer.begin(step, steps)
    return await buffer.take(draws.take(needed), [3] * 9)


def names(groups):
    return [group.task for group in groups]


INFORMATIVE = InformativeGate(budget=1.0)


async def test_groups_that_teach_nothing_are_replaced_while_the_budget_lasts():
    runner, draws = Runner(), Draws("bad 1", "good 2", "bad 3", "good 4", "bad 5", "bad 6", "bad 7")
    buffer = buffer_of(runner, gate=INFORMATIVE)
    first = await step_of(buffer, 0, draws)
    assert (names(first.trained), names(first.rejected)) == (
        ["good 2", "good 4"],
        ["bad 1", "bad 3"],
    )
    assert {group.rejected for group in first.rejected} == {"uninformative"}
    # Two of two, and two in place of others: then the first that were rejected fill the step.
    draws.names += [(0, "bad 8")]
    second = await step_of(buffer, 1, draws)
    assert (names(second.trained), names(second.rejected)) == (
        ["bad 5", "bad 6"],
        ["bad 7", "bad 8"],
    )


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
async def test_which_groups_a_step_has_does_not_depend_on_which_end_first(order):
    tasks = ["bad 0", "good 1", "bad 2", "good 3", "bad 4", "good 5", "bad 6", "bad 7"]
    gates = {task: asyncio.Event() for task in tasks}
    runner = Runner(gates)
    buffer = buffer_of(runner, gate=InformativeGate(budget=1.0), wanted=4)
    taking = asyncio.create_task(step_of(buffer, 0, Draws(*tasks)))
    for place in order:
        await turned(lambda: len(runner.begun) >= 4)
        gates[tasks[place]].set()
        for _ in range(20):
            await asyncio.sleep(0)
    for gate in reversed(gates.values()):
        gate.set()
        for _ in range(20):
            await asyncio.sleep(0)
    batch = await taking
    assert names(batch.trained) == ["bad 0", "good 1", "good 3", "good 5"]
    assert names(batch.rejected) == ["bad 2", "bad 4", "bad 6", "bad 7"]


async def test_a_group_is_replaced_by_one_of_its_own_environment():
    one, other = Runner(), Runner()
    draws = Draws((0, "bad 0"), (1, "good 1"), (1, "good 2"), (0, "good 3"))
    buffer = buffer_of(one, other, gate=INFORMATIVE)
    batch = await step_of(buffer, 0, draws)
    assert names(batch.trained) == ["good 1", "good 3"] and names(batch.rejected) == ["bad 0"]
    # The draw that was not needed is the next step's first.
    draws.names += [(0, "good 4"), (0, "good 5"), (0, "good 6")]
    assert names((await step_of(buffer, 1, draws)).trained) == ["good 2", "good 4"]
    # Nothing of its environment is left, so it is trained on.
    buffer = buffer_of(one, other, gate=INFORMATIVE)
    batch = await step_of(buffer, 0, Draws((0, "bad 0"), (1, "good 1"), (1, "good 2"), (1, "x")))
    assert names(batch.trained) == ["bad 0", "good 1"] and batch.rejected == []


async def test_without_a_gate_nothing_more_is_drawn_than_is_trained_on():
    buffer, draws = buffer_of(Runner()), Draws("bad 1", "bad 2", "bad 3")
    assert names((await step_of(buffer, 0, draws)).trained) == ["bad 1", "bad 2"]
    assert draws.number == 2


@dataclass(frozen=True, kw_only=True)
class Sparing(InformativeGate):
    """Also rejects groups of one task."""

    name: str = ""

    def admit(self, group):
        return super().admit(group) or ("spared" if group.task == self.name else None)


async def test_gates_say_why_a_group_does_not_count():
    def reason(setting, task, rewards=(0.0, 1.0), length=4):
        gate = object_of("admission", setting, GATES, AdmissionGate)
        return gate.admit(Group(0, task, returns=list(rewards), tokens=length + 1))

    assert reason("all", "x", (0.0, 0.0), 1000) is None
    assert reason({"type": "all", "max_tokens": 90}, "x", length=89) is None
    assert reason({"type": "all", "max_tokens": 90}, "x", length=90) == "too_long"
    assert reason("informative", "x", (0.0, 0.0)) == "uninformative"
    own = {"type": f"{__name__}:Sparing", "name": "x", "budget": 2}
    assert reason(own, "x") == "spared" and reason(own, "y") is None
    assert object_of("admission", own, GATES, AdmissionGate).max_replaced(3) == 6
    with pytest.raises(ConfigError, match=r"admission\.budget is at least 0"):
        object_of("admission", {**own, "budget": -1}, GATES, AdmissionGate)
    buffer = buffer_of(Runner(), gate=AdmissionGate(max_tokens=50))
    batch = await step_of(buffer, 0, Draws("long 1", "good 2", "good 3", "good 4"))
    assert names(batch.trained) == ["good 2", "good 3"]
    assert [group.rejected for group in batch.rejected] == ["too_long"]


async def test_groups_go_on_while_the_trainer_computes_and_none_is_started_in_vain():
    gates = {f"slow {i}": asyncio.Event() for i in range(2)}
    runner = Runner(gates)
    buffer = buffer_of(runner, max_age=1)
    draws = Draws("slow 0", "good 1", "good 2", *(f"good {i}" for i in range(3, 20)))
    first = await step_of(buffer, 0, draws, steps=3)
    assert names(first.trained) == ["good 1", "good 2"], "as they come"
    for _ in range(20):
        await asyncio.sleep(0)
    # While step 0 trains, those of step 1 are played, with the weights that there are: the two
    # that ended, and the slow one.
    assert [task for task, _ in runner.begun] == ["slow 0", "good 1", "good 2", "good 3"]
    gates["slow 0"].set()
    second = await step_of(buffer, 1, draws, steps=3)
    assert names(second.trained) == ["slow 0", "good 3"]
    third = await step_of(buffer, 2, draws, steps=3)
    assert len(third.trained) == 2
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(runner.begun) == 6 and not buffer._running, "no step needs more"


async def test_a_group_that_grew_too_old_is_dropped_whole_and_counted():
    never = asyncio.Event()
    runner = Runner({"slow 0": never})
    buffer = buffer_of(runner, max_age=1)
    draws = Draws("slow 0", *(f"good {i}" for i in range(1, 30)))
    for step in range(2):
        assert (await step_of(buffer, step, draws)).dropped == []
    batch = await step_of(buffer, 2, draws)
    assert [(g.task, g.episodes, g.returns) for g in batch.dropped] == [("slow 0", [], [])]
    assert len(batch.trained) == 2
    assert (await step_of(buffer, 3, draws)).dropped == []
    await buffer.close()
    assert not buffer._running


async def test_a_rejected_group_that_grew_too_old_fills_no_step():
    gate = asyncio.Event()
    buffer = buffer_of(
        Runner({"slow bad 0": gate}), gate=InformativeGate(budget=0), wanted=1, max_age=1
    )
    draws = Draws("slow bad 0", "good 1", "good 2", "bad 3", "bad 4", "bad 5")
    for step in range(2):
        assert names((await step_of(buffer, step, draws)).trained) == [f"good {step + 1}"]
    gate.set()
    await turned(lambda: buffer._rejected)
    batch = await step_of(buffer, 2, draws)
    assert names(batch.trained) == ["bad 3"] and "slow bad 0" in names(batch.rejected)
    await buffer.close()


async def test_the_budget_is_a_steps_whatever_the_age_and_every_step_is_full():
    for budget, concurrency in ((0, 64), (0.5, 4), (1, 2)):
        runner = Runner()
        runner.concurrency = concurrency
        buffer = buffer_of(runner, gate=InformativeGate(budget=budget), wanted=4, max_age=2)
        draws = Draws(*(f"bad {i}" for i in range(200)))
        for step in range(6):
            batch = await step_of(buffer, step, draws, steps=6)
            assert len(batch.trained) == 4 and batch.dropped == []
            assert all(group.rejected is None for group in batch.trained)
        assert len(runner.begun) <= 6 * 4 * (1 + budget)
        await buffer.close()


async def test_a_step_does_not_wait_for_the_end_of_what_it_drops():
    ended = asyncio.Event()

    class Stuck(Runner):
        async def collecting(self, actors, specs, horizon, **words):
            if specs[0].task != "stuck":
                return await super().collecting(actors, specs, horizon, **words)
            try:
                return await asyncio.Event().wait()
            finally:
                await ended.wait()

    buffer = buffer_of(Stuck(), max_age=1)
    draws = Draws("stuck", *(f"good {i}" for i in range(1, 30)))
    for step in range(3):
        batch = await step_of(buffer, step, draws)
    assert names(batch.dropped) == ["stuck"] and buffer._ending
    ended.set()
    await turned(lambda: not buffer._ending)
    await buffer.close()


async def test_no_more_episodes_wait_for_a_slot_than_can_be_sampled():
    gates = {f"slow {i}": asyncio.Event() for i in range(20)}
    runner = Runner(gates)
    runner.concurrency = 3
    buffer = buffer_of(runner, wanted=2, max_age=4)
    taking = asyncio.create_task(step_of(buffer, 0, Draws(*gates)))
    await turned(lambda: runner.begun)
    assert len(runner.begun) == 2, "of two episodes each"
    gates["slow 0"].set()
    await turned(lambda: len(runner.begun) == 3)
    gates["slow 1"].set()
    assert len((await taking).trained) == 2
    await buffer.close()


@pytest.mark.parametrize("max_age", [0, 2])
async def test_a_checkpoint_has_what_was_played_and_drawn_and_several_processes_share_it(
    tmp_path, max_age
):
    never = {"slow 1": asyncio.Event()}
    gate, draws = INFORMATIVE, Draws("good 0", "slow 1" if max_age else "good 1", "bad 2", "good 3",
                                     *(f"good {i}" for i in range(4, 20)))  # fmt: skip
    buffer = buffer_of(Runner(never), gate=gate, max_age=max_age)
    await step_of(buffer, 0, draws)
    for _ in range(40):
        await asyncio.sleep(0)
    for rank in (1, 0):  # the second process has nothing
        other = buffer if rank == 0 else buffer_of(Runner())
        await other.save(tmp_path, rank, processes=2)
    ready, left = names(buffer._admitted), [*names(buffer._running.values()), *names(buffer._queue)]
    assert bool(ready) == bool(max_age) and left
    await buffer.close()
    again, other, alone, *three = (
        loaded(tmp_path, rank, processes, max_age) for rank, processes in
        ((0, 2), (1, 2), (0, 1), (0, 3), (1, 3), (2, 3))
    )  # fmt: skip
    for same in (again, alone):
        assert (names(same._admitted), names(same._queue)) == (ready, left)
        assert all(len(group.episodes) == 2 for group in same._admitted)
    assert held(other) == []
    assert sorted(held(again)) == sorted(name for each in three for name in held(each))
    batch = await step_of(again, 1, draws)
    assert len(batch.trained) == 2 and set(ready) <= {*names(batch.trained), *held(again)}
    await again.close()
    # A checkpoint that is written once more has what is left now.
    await buffer_of(Runner()).save(tmp_path, rank=0, processes=1)
    assert held(loaded(tmp_path, 0, 1)) == []


def loaded(folder, rank, processes, max_age=0):
    buffer = buffer_of(Runner(), gate=INFORMATIVE, max_age=max_age)
    buffer.load(folder, rank, processes)
    return buffer


def held(buffer):
    return names([*buffer._admitted, *buffer._running.values(), *buffer._queue])


async def test_what_breaks_is_raised_and_leaves_nothing_behind(make_host):
    host = make_host()

    def broken(prompt, turn):
        raise ZeroDivisionError("broken")

    engine = Waiting(broken, lambda prompt, turn: None)
    loop = rollouts(host, engine.actors())

    class Real:
        concurrency = 256

        async def collecting(self, actors, specs, horizon, *, step, instruction, on_episode):
            return await loop.collect(specs, horizon, step=step, on_episode=on_episode)

    buffer = buffer_of(Real(), max_age=1)
    with pytest.raises(ExceptionGroup, match="unhandled errors in a TaskGroup"):
        await step_of(buffer, 0, Draws("2", "3", "4", "5"))
    await turned(lambda: len(host.table) == 0)
    assert not buffer._running


async def test_episodes_go_on_with_new_weights_and_each_token_knows_its_version(make_host):
    host, gate = make_host(), asyncio.Event()
    engine = Waiting(
        lambda prompt, turn: str(turn + 1), lambda prompt, turn: gate if turn == 2 else None
    )
    loop = rollouts(host, engine.actors())

    class Real:
        concurrency = 256

        async def collecting(self, actors, specs, horizon, *, step, instruction, on_episode):
            return await loop.collect(specs, horizon, step=step, on_episode=on_episode)

    buffer = buffer_of(Real(), max_age=2)
    draws = Draws("5", "2", "1", "1", "2", "1", "2", "1", "2", "1", "2", "1")
    first = await step_of(buffer, 0, draws)
    assert "5" not in names(first.trained)
    await engine.update_weights(None, 1)
    gate.set()
    found = {}
    for step in (1, 2):
        batch = await step_of(buffer, step, draws)
        found |= {group.task: group for group in batch.trained}
    versions = [v for v in found["5"].episodes[0].tokens.versions if v >= 0]
    assert versions == sorted(versions) and set(versions) == {0, 1}
    assert found["5"].oldest == 0
    await buffer.close()
    assert (len(host.table), engine.live) == (0, set())
