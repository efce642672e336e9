"""Which task comes next: by weights and epochs, by contrast, or as a class of the user's says."""

from __future__ import annotations

import json
import random
from collections import Counter
from types import SimpleNamespace

import pytest

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.text_env import TaskSet
from agentgym_train.config.checks import object_of
from agentgym_train.config.read import config_from
from agentgym_train.config.worlds import World
from agentgym_train.rollout.contrast import SAMPLERS
from agentgym_train.rollout.gates import AdmissionGate
from agentgym_train.rollout.groups import Group
from agentgym_train.rollout.horizon import Fixed
from agentgym_train.rollout.samplers import TaskSampler, TaskSource, UniformSampler
from agentgym_train.rollout.worlds import StepWorld
from tests.train.command import Command, finish
from tests.train.test_run import write_config

NEEDED = {"model": "hub/id", "env": "textcraft", "output_dir": "x"}


def sources(*counts, weights=(), category=lambda task: task[0]):
    """Environments a, b, ... with so many tasks."""
    weights = weights or [1.0] * len(counts)
    return [
        TaskSource(name, weight, {f"{name}{i}": category(f"{name}{i}") for i in range(count)})
        for name, weight, count in zip("abc", weights, counts, strict=False)
    ]


def begun(setting, of, seed=0):
    sampler = object_of("sampler", setting, SAMPLERS, TaskSampler, "next")
    sampler.begin(of, seed)
    return sampler


def drawn(sampler, count, seed=0, first=0):
    """So many draws, each with its own chance, as in a run."""
    found = []
    for number in range(first, first + count):
        sampler.chance = random.Random(f"{seed}/{number}")
        found.append(sampler.next())
    return found


def group(env, task, informative):
    return Group(env, task, returns=[0.0, float(informative)])


def test_each_environment_has_its_share_of_every_step_rounded_up_or_down():
    weights = [3.0, 1.0, 0.5]
    sampler = begun("uniform", sources(9, 9, 9, weights=weights))
    counts = Counter()
    for _ in range(500):
        envs = [env for env, _ in drawn(sampler, 8)]
        for env, weight in enumerate(weights):
            assert abs(envs.count(env) - 8 * weight / 4.5) <= 1
        counts.update(envs)
    for env, weight in enumerate(weights):
        assert counts[env] == pytest.approx(4000 * weight / 4.5, abs=1)


def test_an_epoch_has_every_task_once_in_another_order_and_none_comes_twice_in_a_row():
    for count in (1, 2, 3, 7, 30):
        tasks = [task for _, task in drawn(begun("uniform", sources(count)), 6 * count)]
        epochs = [tuple(tasks[i : i + count]) for i in range(0, 6 * count, count)]
        assert all(len(set(epoch)) == count for epoch in epochs)
        assert count < 7 or len(set(epochs)) == 6
        apart = count // 3 + 1
        for first in range(len(tasks) - apart + 1):
            assert len(set(tasks[first : first + apart])) == apart
    assert drawn(begun("uniform", sources(9), seed=1), 9) != drawn(begun("uniform", sources(9)), 9)


@pytest.mark.parametrize("setting", ["uniform", "contrast", {"type": "contrast", "envs": True}])
def test_a_sampler_goes_on_from_its_state(setting):
    one, other = (begun(setting, sources(7, 5, weights=[2, 1])) for _ in range(2))
    for env, task in drawn(one, 40)[:30]:
        one.observe(group(env, task, informative=task[-1] in "024"))
    other.load(json.loads(json.dumps(one.state())))
    assert drawn(one, 40, first=40) == drawn(other, 40, first=40)


def test_a_task_whose_groups_teach_is_drawn_more_often_and_none_is_forgotten():
    of = [TaskSource("e", 1.0, {task: task for task in ("always", "never", "new", "spare")})]
    sampler = begun("contrast", of)  # each task is a category
    for _ in range(50):
        sampler.observe(group(0, "always", informative=True))
        sampler.observe(group(0, "never", informative=False))
    assert sampler.weight(0, "new") == sampler.weight(0, "always") == pytest.approx(1, abs=1e-3)
    assert sampler.weight(0, "never") == 0.05
    found = Counter()
    for number in range(6000):
        ((_, task),) = drawn(sampler, 1, first=number)
        found[task] += 1
        sampler.observe(Group(0, task))  # it was lost: nothing is learned
    # In proportion to the weights, with 4 standard deviations.
    for task, weight in {"always": 1, "never": 0.05, "new": 1, "spare": 1}.items():
        share = weight / 3.05
        assert found[task] / 6000 == pytest.approx(share, abs=4 * (share / 6000) ** 0.5)
    for _ in range(10):  # what was learned or forgotten counts again soon
        sampler.observe(group(0, "always", informative=False))
    assert sampler.weight(0, "always") < 0.3


def test_a_new_task_is_judged_by_the_others_of_its_category():
    of = [TaskSource("e", 1.0, {f"{kind}{i}": kind for kind in "ab" for i in range(100)})]
    sampler = begun("contrast", of)
    assert sampler.weight(0, "a1") == sampler.weight(0, "b1") == 1
    for number in range(10):
        sampler.observe(group(0, f"a{number}", informative=True))
        sampler.observe(group(0, f"b{number}", informative=False))
    assert sampler.weight(0, "a99") == pytest.approx(1)
    assert sampler.weight(0, "b99") < 0.15
    for _ in range(5):  # what is known of a task counts more than its category
        sampler.observe(group(0, "b99", informative=True))
    assert sampler.weight(0, "b99") > 0.7


def test_a_task_is_not_drawn_again_before_its_group_was_observed():
    sampler = begun("contrast", sources(6))
    first = drawn(sampler, 6)
    assert len(set(first)) == 6
    assert len(set(drawn(sampler, 6, first=6))) == 6, "all others were drawn since"
    sampler = begun("contrast", sources(2))
    assert Counter(drawn(sampler, 6)).most_common(1)[0][1] == 3
    assert drawn(begun("contrast", sources(1)), 2) == [(0, "a0")] * 2


def test_environments_that_still_teach_are_drawn_more_often():
    sampler = begun({"type": "contrast", "tasks": False, "envs": True}, sources(50, 50))
    before = Counter(env for env, _ in drawn(sampler, 400))
    assert before[0] == before[1]
    for number in range(40):
        sampler.observe(group(0, f"a{number}", informative=False))
        sampler.observe(group(1, f"b{number}", informative=number % 2 == 0))
    after = Counter(env for env, _ in drawn(sampler, 400, first=400))
    assert after[0] < after[1] / 4 and after[0] > 0, "and none is forgotten"


def test_the_tasks_of_an_environment_are_those_of_its_split_with_their_categories():
    known = TaskSet({"train": ["1", "2"], "test": ["3"]}, {"1": "easy"})
    world = StepWorld(
        World(env="textcraft", split="train", weight=2.0),
        SimpleNamespace(tasks=known, env_id="x/E-v0"), SimpleNamespace(), Fixed(3),
    )  # fmt: skip
    assert world.source() == TaskSource("x/E-v0", 2.0, {"1": "easy", "2": None})


class NoDraw(TaskSampler):
    """Lacks the one method that is needed."""


class Broken(UniformSampler):
    """Cannot be made."""

    def __init__(self, rate):
        raise ZeroDivisionError(rate)


class Backwards(UniformSampler):
    """Tasks from the last to the first; learns the returns, and what its config says."""

    def __init__(self, first: int = -1) -> None:
        self.first, self.seen = first, []

    def next(self):
        tasks = list(self.sources[0].tasks)
        return 0, tasks[(self.first - len(self.seen)) % len(tasks)]

    def observe(self, group):
        self.seen.append([group.task, *group.returns])

    def state(self):
        return self.seen

    def load(self, state):
        self.seen = state


class Elsewhere(UniformSampler):
    """Draws what there is not."""

    def next(self):
        return 0, "no such task"


class Fields(UniformSampler):
    """Has a field, without which it is no dataclass of its own."""

    rate: float = 0.5


HERE = __name__


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("contrsat", "sampler has no type 'contrsat'; choose from uniform, contrast, or write"),
        (f"{HERE}:Nobody", r"cannot import .*:Nobody' of sampler"),
        ("json:JSONDecoder", "is not for sampler; write `class JSONDecoder\\(TaskSampler\\)`"),
        (f"{HERE}:NoDraw", "does not define next"),
        ({"type": f"{HERE}:Fields", "rate": 2}, "not a dataclass; write `@dataclass` above"),
        ({"type": f"{HERE}:Broken", "rate": 2}, "made with rate: ZeroDivisionError: 2"),
        ({"type": f"{HERE}:Backwards", "lst": 2}, "made with lst: TypeError"),
        ({"type": "uniform", "tasks": True}, "no keys are allowed here"),
    ],
)
def test_a_sampler_that_cannot_be_made_says_why(setting, message):
    with pytest.raises(ConfigError, match=message):
        object_of("sampler", setting, SAMPLERS, TaskSampler, "next")


def test_a_class_of_the_users_is_imported_by_the_run_and_not_by_its_config():
    assert config_from({**NEEDED, "sampler": "evil:Nobody", "admission": "evil:Gate"}).sampler


def test_a_run_draws_what_a_sampler_of_the_users_says(tmp_path):
    setting = {"type": "tests.train.test_samplers:Backwards", "first": -1}
    config = write_config(
        tmp_path, env="tests.train.uneven:Uneven", sampler=setting, steps=2, save_every=2,
        eval={"before": False, "after": False},
    )  # fmt: skip
    status, output = finish(Command("train", config))
    assert status == 0, output
    played, _ = RunStore.open(tmp_path / "run").trajectories("train")
    # Both groups of a step are drawn before either was observed.
    assert [t.task for t in played[::2]] == ["12 too", "12 too", "1 too", "1 too"]
    assert [t.sample for t in played] == [0, 1] * 4
    (kept,) = (tmp_path / "run/checkpoints").glob("*/sampler.json")
    state = json.loads(kept.read_text())
    assert state["draws"] == 4 and state["sampler"][0][0] == "12 too"


class Unstorable(UniformSampler):
    """Has a state that no file can have."""

    def state(self):
        return object()


class Judge(AdmissionGate):
    """Answers yes or no."""

    def admit(self, group):
        return len(group.episodes) > 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": f"{HERE}:Elsewhere"}, "test_samplers:Elsewhere draws (0, 'no such task')"),
        ({"sampler": f"{HERE}:Unstorable"}, "test_samplers:Unstorable cannot be stored as JSON"),
        ({"admission": f"{HERE}:Judge"}, "Judge.admit returns False; it returns None to train"),
    ],
)
def test_what_a_class_of_the_users_does_wrong_is_named(tmp_path, changes, message):
    config = write_config(
        tmp_path, env="tests.train.uneven:Uneven", eval={"before": False, "after": False}, **changes
    )
    status, output = finish(Command("train", config))
    assert status == 2 and message in " ".join(output.split())
