"""Runs in several processes: started as asked or refused, never hung, and the same as in one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from safetensors.torch import load_file

from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_env.launch import child_environment
from agentgym_env.run_store import RunStore
from agentgym_train.config.read import config_from
from agentgym_train.runs import launch
from agentgym_train.runs.launch import launch_if_asked
from agentgym_train.runs.preflight import ASKED, ProcessRank, process_rank
from tests.train.command import MAIN, Command, finish
from tests.train.small import merged
from tests.train.test_policy_age import MORE_SIGNAL
from tests.train.test_run import write_config
from waiting import until

ROOT = Path(__file__).parents[2]
CONFIGS = {path.stem: path for path in sorted((ROOT / "examples" / "accelerate").glob("*.yaml"))}
UNEVEN = {
    "env": "tests.train.uneven:Uneven",
    "horizon": [12],
    "steps": 2,
    "prompts_per_step": 4,
    "num_generations": 2,
    "turn_max_tokens": 5,
    "save_every": 1,
    "eval": {"horizon": 5},
}


def run(*words: object, **changes: str) -> tuple[int, str]:
    """Exit status and all output of a command that finds the tests' worlds."""
    environ = {**child_environment(), "OMP_NUM_THREADS": "1", **changes}
    done = subprocess.run(
        [sys.executable, *map(str, words)], env=environ, cwd=ROOT, text=True, timeout=600,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def train_in(count: int, *words: object) -> tuple[int, str]:
    """Exit status and all output of a training run in so many processes."""
    if count == 1:
        return finish(Command("train", *words, "--num-processes", 1, cwd=ROOT))
    return run("-c", MAIN, "train", *words, "--num-processes", count)


ACCELERATE = ("-m", "accelerate.commands.launch")


@pytest.fixture(scope="module")
def one_and_two(tmp_path_factory) -> dict[int, Path]:
    """The same run in one process and in two, by their number."""
    folder = tmp_path_factory.mktemp("processes")
    config = write_config(folder, **UNEVEN)
    runs = {}
    for count in (1, 2):
        runs[count] = folder / f"run-{count}"
        status, output = train_in(count, config, f"output_dir={runs[count]}")
        assert status == 0, output
        assert "Warning" not in output and "Traceback" not in output, output
    return runs


@pytest.mark.slow
def test_two_processes_with_unequal_episodes_finish_and_keep_every_episode(one_and_two):
    store = RunStore.open(one_and_two[2])
    rows, broken = store.metrics()
    assert broken == [] and [row["step"] for row in rows] == [1, 2]
    episodes, broken = store.trajectories("train")
    assert broken == [] and len(episodes) == 2 * 4 * 2
    for step in (0, 1):
        of_step = [e for e in episodes if e.step == step]
        # A process has two of the four groups, and a group is whole: its members stand together.
        assert [e.group for e in of_step] == [0, 0, 1, 1, 2, 2, 3, 3]
        for first, second in zip(of_step[::2], of_step[1::2], strict=True):
            assert (first.task, first.seed) == (second.task, second.seed)
        assert {len(e.turns) for e in of_step} == {1, 12}
        assert [rows[step]["turns"], rows[step]["env_steps"]] == [6.5, 52]
    assert {e.horizon for e in episodes} == {12} == {row["horizon"] for row in rows}
    kept = json.loads((store.checkpoints / "checkpoint-2" / "horizon.json").read_text())
    assert kept["step"] == 2 and [h["turns"] for h in kept["horizons"].values()] == [12]


@pytest.mark.slow
def test_two_processes_are_the_run_of_one(one_and_two):
    weights = [load_file(path / "model" / "model.safetensors") for path in one_and_two.values()]
    start = load_file(one_and_two[1].parent / "policy" / "model.safetensors")
    assert any(not w.equal(start[name]) for name, w in weights[0].items()), "something was learned"
    for name, weight in weights[0].items():
        # Adam makes steps of one size out of gradients that differ by their rounding alone.
        assert weight.allclose(weights[1][name], rtol=1e-4, atol=5e-5), name
    one, two = (RunStore.open(path) for path in one_and_two.values())
    for name in ("train", "eval_before", "eval_after"):
        played = [
            [(e.task, e.seed, [t.response for t in e.turns]) for e in store.trajectories(name)[0]]
            for store in (one, two)
        ]
        assert played[0] == played[1]
    for mine, its in zip(one.metrics()[0], two.metrics()[0], strict=True):
        for name in ("loss", "reward", "turns", "env_steps", "sampled_tokens", "grad_norm"):
            assert mine[name] == pytest.approx(its[name], rel=1e-4, abs=1e-6), name


@pytest.mark.slow
def test_the_config_for_two_processes_on_cpus_starts_two(tmp_path):
    changes = merged(UNEVEN, {"eval": {"before": False, "after": False}})
    config = write_config(tmp_path, **changes)
    status, output = run(
        *ACCELERATE, "--config_file", CONFIGS["cpu_two_processes"], "-m", "agentgym_train",
        config, "steps=1",
    )  # fmt: skip
    assert status == 0, output
    states = list((tmp_path / "run" / "checkpoints" / "checkpoint-1").glob("rng_state_*.pth"))
    assert len(states) == 2, "each process kept its own"


@pytest.mark.slow
def test_two_processes_on_cpus_of_which_accelerate_starts_one_are_refused(tmp_path):
    config = write_config(tmp_path, **UNEVEN)
    status, output = run(*ACCELERATE, "--cpu", "--num_processes", 2, "-m", "agentgym_train", config)
    assert status != 0
    said = " ".join(output.split())
    assert "was configured for several processes but started one" in said
    assert "cpu_two_processes.yaml" in said
    assert not (tmp_path / "run").exists()


def test_a_process_knows_its_place():
    assert process_rank({}) == ProcessRank(0, 1)
    assert process_rank({"WORLD_SIZE": "4", "RANK": "3"}) == ProcessRank(3, 4)
    assert process_rank({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}) == ProcessRank(
        1, 2
    )
    assert process_rank({"WORLD_SIZE": "2", "RANK": "0", ASKED: "2"}).is_first
    launched = {"ACCELERATE_MIXED_PRECISION": "no"}
    assert process_rank(launched) == ProcessRank(0, 1)
    # Sharded on one GPU: torchrun, and one process is what was asked for.
    assert process_rank(
        {**launched, "WORLD_SIZE": "1", "RANK": "0", "MASTER_PORT": "1"}
    ) == ProcessRank(0, 1)
    assert process_rank({**launched, "MASTER_PORT": "29500", ASKED: "1"}) == ProcessRank(0, 1)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({ASKED: "2"}, "2 processes were requested but 1 started"),
        ({ASKED: "4", "WORLD_SIZE": "2", "RANK": "0"}, "4 .* requested but 2 started"),
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_PORT": "29500"}, "several .* started one"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a number, got 'two'"),
    ],
)
def test_fewer_processes_than_were_asked_for_are_refused(environ, said):
    with pytest.raises(BadRequest, match=said):
        process_rank(environ)


@pytest.fixture
def became(monkeypatch) -> list[list[str]]:
    """The commands that the launcher would have become."""
    commands: list[list[str]] = []
    monkeypatch.setattr(
        launch, "_become", lambda command, environ: commands.append([*command, environ])
    )
    return commands


MODEL = Path(__file__).parents[2] / "examples" / "train" / "textcraft" / "warm_policy"
CONFIG = config_from({"model": str(MODEL), "env": "e", "output_dir": "o", "prompts_per_step": 32})


def test_the_launcher_becomes_accelerate_with_the_same_words(became):
    launch_if_asked(CONFIG, ["c.yaml", "steps=3"], CONFIGS["fsdp2"], None)
    launch_if_asked(CONFIG, ["c.yaml"], CONFIGS["fsdp2"], 4)
    launch_if_asked(CONFIG, ["c.yaml"], None, 2)
    (*first, asked), (*second, asked_too), (*third, _) = became
    assert first[1:5] == ["-m", "agentgym_train.launcher", "--config_file", str(CONFIGS["fsdp2"])]
    assert first[5:] == ["-m", "agentgym_train", "c.yaml", "steps=3"]
    assert asked[ASKED] == "8" and asked_too[ASKED] == "4"
    assert second[5:7] == ["--num_processes", "4"]
    assert {"--multi_gpu", "--num_processes"} <= set(third)


def test_one_process_needs_no_launcher(became):
    launch_if_asked(CONFIG, ["c.yaml"], None, 1)
    assert became == []


def test_what_can_not_be_launched_is_refused_before_it_is(became, tmp_path, monkeypatch):
    odd, empty = tmp_path / "odd.yaml", tmp_path / "empty.yaml"
    odd.write_text("distributed_type: MULTI_GPU\nnum_processes: 3\n")
    empty.write_text("steps: 3\n")
    for file, count, said in (
        (odd, None, "prompts_per_step 32 is not divisible by 3 processes"),
        (None, 5, "is not divisible by 5 processes"),
        (None, 0, "--num-processes must be at least 1, got 0"),
        (empty, None, "is not an accelerate config"),
        (tmp_path / "none.yaml", None, "one is starter:accelerate/fsdp2.yaml"),
    ):
        with pytest.raises(BadRequest, match=said):
            launch_if_asked(CONFIG, ["c.yaml"], file, count)
    with pytest.raises(MissingExtra, match="pip install deepspeed"):
        launch_if_asked(CONFIG, ["c.yaml"], CONFIGS["zero2"], None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadRequest, match="a launcher already started this process"):
        launch_if_asked(CONFIG, ["c.yaml"], None, 2)
    assert became == []


def test_there_is_an_accelerate_config_for_each_way_to_spread_a_run():
    assert set(CONFIGS) == {
        "single_gpu", "multi_gpu", "fsdp2", "zero2", "zero3", "multi_node", "cpu_two_processes"
    }  # fmt: skip
    for path in CONFIGS.values():
        assert path.read_text().startswith("# "), "it says when to use it"


@pytest.mark.parametrize("name", CONFIGS)
def test_accelerates_own_parser_takes_the_config(name):
    config = load_config_from_file(str(CONFIGS[name]))
    args = launch_command_parser().parse_args(["--config_file", str(CONFIGS[name]), "x.py"])
    args, _, _ = _validate_launch_command(args)
    starts_several = args.multi_gpu or args.use_fsdp or args.use_deepspeed
    assert starts_several == (config.num_processes > 1)
    assert not args.cpu
    if args.use_fsdp:
        # FSDP1 can not be sampled from; with ram-efficient loading only rank 0 has the weights.
        assert args.fsdp_version == 2
        assert not args.fsdp_cpu_ram_efficient_loading


@pytest.mark.slow
def test_processes_that_share_a_sharded_model_sample_unequally_often_without_waiting():
    status, output = run(
        "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2, "-m",
        "tests.train.sharded_ranks",
    )  # fmt: skip
    assert status == 0, output
    assert "rank 0 is done" in output and "rank 1 is done" in output


@pytest.mark.slow
def test_two_processes_with_all_that_gives_more_signal_stay_one_run_and_resume(tmp_path):
    changes = UNEVEN | MORE_SIGNAL | {"steps": 4, "save_every": 2, "learning_rate": 0.01}
    changes |= {"eval": {"before": False, "after": False}}
    config = write_config(tmp_path, **changes)
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    status, output = train_in(2, config, f"output_dir={whole}")
    assert status == 0, output
    rows, _ = RunStore.open(whole).metrics()
    assert len(rows) == 4 and any(row["clip_ratio/region_mean"] > 0 for row in rows)
    assert all({"kl", "entropy", "informative_groups"} <= row.keys() for row in rows)
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoints" / "checkpoint-4")
    shutil.rmtree(resumed / "model")
    (resumed / "summary.json").unlink()
    status, output = run("-c", MAIN, "train", "--resume", resumed, "--trust", "--num-processes", 2)
    assert status == 0, output
    first, second = (load_file(run / "model" / "model.safetensors") for run in (whole, resumed))
    for name, weight in first.items():
        assert weight.equal(second[name]), name
    again, _ = RunStore.open(resumed).metrics()
    for row, other in zip(rows, again, strict=True):
        for name in ("success", "env_steps", "discarded_env_steps", "kl", "entropy"):
            assert row[name] == other[name], name


@pytest.mark.slow
@pytest.mark.parametrize("at", ["imports", "training"])
def test_ctrl_c_ends_two_processes_by_our_message_alone(at, tmp_path):
    config = write_config(tmp_path, **{**UNEVEN, "steps": 200})
    folder = tmp_path / "run"
    environ = {**child_environment(), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "train", str(config), "--num-processes", "2"], cwd=ROOT,
        env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip

    def is_there() -> bool:
        if at == "training":
            return (folder / "metrics.jsonl").exists()
        launcher = psutil.Process(process.pid)
        is_launcher = "agentgym_train.launcher" in launcher.cmdline()
        return is_launcher and any("torch" in part.path for part in launcher.memory_maps())

    until(is_there, f"no {at}", process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 130, output
    assert "Traceback" not in output and "elastic" not in output, output
    if at == "training":
        assert f"agentgym train --resume {folder}" in output.replace("\n", "")
        assert list((folder / "checkpoints").glob("checkpoint-*"))
