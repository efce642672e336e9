"""The horizon over a run's life: read at an episode's start, kept, and resumed right."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_train.rollout.horizon import Adaptive, ScalingInterStepwise
from agentgym_train.training.checkpoints import HorizonState, last_checkpoint
from tests.train.command import Command, finish
from tests.train.test_run import wait_for, write_config

# Nothing is ever solved at these horizons, so success never rises: after the first step of a
# stage the horizon grows at every second one.
ADAPTIVE = {
    "horizon": {"type": "adaptive", "turns": [1, 2, 3], "every": 1, "patience": 1, "window": 1},
    "eval": {"before": False, "after": False},
    "steps": 12,
    "save_every": 1,
}
GROWN = [1, 1, 2, 2] + [3] * 8
ENV, OTHER = "agentgym/TextCraft-v0", "agentgym/BabyAI-v0"


def saved(folder, step, horizons):
    (folder / f"checkpoint-{step}").mkdir()
    args, state = SimpleNamespace(output_dir=folder), SimpleNamespace(global_step=step)
    state.is_world_process_zero = True
    HorizonState(horizons, None, print).on_save(args, state, None)


def test_a_checkpoint_keeps_the_horizon_and_gives_it_back(tmp_path):
    horizon = Adaptive((4, 8, 12), threshold=0.5, window=1)
    horizon.observe(0, 0.9)
    saved(tmp_path, 1, {ENV: horizon})
    kept = json.loads((tmp_path / "checkpoint-1" / "horizon.json").read_text())
    assert (kept["step"], kept["horizons"][ENV]["turns"]) == (1, 8)
    (growth,) = kept["horizons"][ENV]["state"]["growths"]
    assert growth["reason"] == "success 0.90 over 1 steps reached 0.5"
    resumed, told = Adaptive((4, 8, 12), threshold=0.5, window=1), []
    state = HorizonState({ENV: resumed}, str(tmp_path / "checkpoint-1"), told.append)
    state.on_step_end(None, None, None)
    assert resumed(1) == 8 and told == [], "what was told before is not told again"
    resumed.observe(1, 0.7)
    state.on_step_end(None, None, None)
    assert told == ["horizon 12 from step 2: success 0.70 over 1 steps reached 0.5"]


def two_horizons():
    return {
        ENV: Adaptive((4, 8), threshold=0.5, window=1),
        OTHER: ScalingInterStepwise((3, 9), every=5),
    }


def test_the_horizon_of_each_environment_grows_and_is_stored_by_itself(tmp_path):
    horizons, told = two_horizons(), []
    state = HorizonState(horizons, None, told.append)
    horizons[ENV].observe(0, 0.9)
    state.on_step_end(None, None, None)
    reason = "success 0.90 over 1 steps reached 0.5"
    assert told == [f"horizon 8 in {ENV} from step 1: {reason}"]
    saved(tmp_path, 6, horizons)
    checkpoint = tmp_path / "checkpoint-6"
    kept = json.loads((checkpoint / "horizon.json").read_text())["horizons"]
    assert {env: found["turns"] for env, found in kept.items()} == {ENV: 8, OTHER: 9}
    resumed = two_horizons()
    HorizonState(resumed, str(checkpoint), told.append).on_step_end(None, None, None)
    assert (resumed[ENV](6), resumed[OTHER](6), len(told)) == (8, 9, 1)
    with pytest.raises(ConfigError, match=f"of {OTHER}, {ENV}, the config has {ENV}"):
        HorizonState({ENV: Adaptive((4, 8))}, str(checkpoint), print)


@pytest.mark.parametrize("envs", [(ENV,), (ENV, OTHER)])
def test_a_checkpoint_of_an_earlier_version_gives_the_horizon_back(tmp_path, envs):
    """It had the state of one schedule, or a mapping of several, without a list of environments."""
    grown = Adaptive((4, 8), threshold=0.5, window=1)
    grown.observe(0, 0.9)
    states = {ENV: grown.state_dict(), OTHER: {}}
    stored = {"step": 1, "turns": 8, "state": states if len(envs) > 1 else states[ENV]}
    (tmp_path / "horizon.json").write_text(json.dumps(stored))
    resumed = {env: two_horizons()[env] for env in envs}
    HorizonState(resumed, str(tmp_path), print)
    assert resumed[ENV](1) == 8


def test_a_half_written_checkpoint_is_passed_over(tmp_path):
    assert last_checkpoint(tmp_path / "none") is None
    for step in (9, 10):
        saved(tmp_path, step, {ENV: Adaptive((4, 8))})
    (tmp_path / "checkpoint-11").mkdir()
    (tmp_path / "checkpoint-11" / "model.safetensors").touch()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_horizon_it_had(tmp_path):
    process = Command("train", write_config(tmp_path, **ADAPTIVE))
    run = tmp_path / "run"
    wait_for(lambda: (run / "checkpoints" / "checkpoint-3" / HorizonState.FILE).exists(),
             process)  # fmt: skip
    process.kill()
    process.communicate()
    status, output = finish(Command("train", "--resume", run))
    assert status == 0, output
    rows, _ = RunStore.open(run).metrics()
    assert [row["horizon"] for row in rows] == GROWN
    episodes, _ = RunStore.open(run).trajectories("train")
    assert {(e.step, e.horizon) for e in episodes} == set(enumerate(GROWN))
    assert all(len(e.turns) <= e.horizon for e in episodes)
