"""Collecting episodes: kept as they end, gone on with after any end, and never played twice."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

import hosting
import worlds
from agentgym_env.errors import INTERRUPTED, BadRequest, ConfigError
from agentgym_env.launch import local_server
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_train.config.episodes import EpisodeFilter
from agentgym_train.config.files import local_path
from agentgym_train.data.collect import (
    CollectConfig,
    collect,
    collected,
    collection_starts,
    opened,
    play_starts,
)
from agentgym_train.data.datasets import read_demonstrations
from agentgym_train.data.pairs import make_pairs
from agentgym_train.data.tokenize import EpisodeTokenizer
from agentgym_train.rollout.runner import RolloutRunner
from tests.train.small import save_tiny_policy, textcraft_tokenizer
from tests.train.test_collector import killing

pytestmark = pytest.mark.usefixtures("guess_server", "textcraft_server")
TEXTCRAFT = "agentgym/TextCraft-v0"
COMMAND = "import typer; from agentgym_train.cli.collect import collect; typer.run(collect)"
STOPPED = """
import os, sys
from pathlib import Path
from agentgym_train.rollout.actors import ExpertActor
signum, file, act, sent = int(sys.argv.pop(1)), Path(sys.argv.pop(1)), ExpertActor.act, []

async def act_until_there_are_20(self):
    if not sent and file.is_file() and file.read_bytes().count(b"\\n") >= 20:
        sent.append(signum)
        os.kill(os.getpid(), signum)
    return await act(self)

ExpertActor.act = act_until_there_are_20
"""
QUIET = Console(quiet=True)


def config(out: Path, **changes: object) -> CollectConfig:
    values = {"env": hosting.GUESS, "model": "expert", "output_dir": str(out), **changes}
    return CollectConfig(**values)


def there(out: Path) -> list[Trajectory]:
    """What a collection holds, without what the clock says."""
    found, broken = collected(RunStore.open(out))
    assert broken == []
    return [msgspec.structs.replace(t, seconds=0.0) for t in found]


def lines(out: Path) -> int:
    file = out / "trajectories" / "collected.jsonl"
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def command(out: Path, n: int, samples: int) -> list[str]:
    words = ["--env", TEXTCRAFT, "--policy", "expert", "--out", str(out), "--n", str(n)]
    return [sys.executable, "-c", COMMAND, *words, "--samples", str(samples)]


def whole(out: Path, **wanted: int) -> str:
    """What a command printed that came to its end."""
    done = subprocess.run(command(out, **wanted), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join(done.stdout.split())


def stopped(out: Path, signum: int, **wanted: int) -> tuple[int, str]:
    """(the exit status, what was printed) of a command that gets a signal when 20 are there."""
    python, option, code, *words = command(out, **wanted)
    file = out / "trajectories" / "collected.jsonl"
    done = subprocess.run(
        [python, option, STOPPED + code, str(signum.value), str(file), *words],
        stdout=subprocess.PIPE, text=True, timeout=200,
    )  # fmt: skip
    return done.returncode, " ".join(done.stdout.split())


@pytest.mark.slow
def test_a_killed_collection_goes_on_and_equals_an_unbroken_one(tmp_path):
    killed, unbroken = tmp_path / "killed", tmp_path / "unbroken"
    wanted = {"n": 444, "samples": 3}
    stopped(killed, signal.SIGKILL, **wanted)
    before = lines(killed)
    assert 20 <= before < 1332, "it was to be killed in the middle"
    assert f"{1332 - before} remain to be played" in whole(killed, **wanted)
    assert lines(killed) == 1332, "nothing is played twice"
    whole(unbroken, **wanted)
    assert there(killed) == there(unbroken)


def test_ctrl_c_keeps_what_is_there(tmp_path):
    out = tmp_path / "run"
    status, output = stopped(out, signal.SIGINT, n=444, samples=3)
    assert status == INTERRUPTED, output
    assert "the same command resumes" in output
    kept = there(out)
    assert 20 <= len(kept) < 1332
    figures = RunStore.open(out).read_json("summary.json")
    assert figures["episodes"] == len(kept) and figures["to_play"] == 1332 - len(kept)


def test_a_line_that_was_cut_is_named_and_its_episode_played_again(tmp_path):
    out = tmp_path / "run"
    assert collect(config(out), QUIET) == 0
    every = there(out)
    file = out / "trajectories" / "collected.jsonl"
    text = file.read_text()
    file.write_text(text[:-30])
    console = Console(record=True, width=300, file=io.StringIO())
    assert collect(config(out), console) == 0
    assert f"line {len(every)} cannot be read" in console.export_text()
    assert [t.task for t in collected(RunStore.open(out))[0]] == [t.task for t in every]


def test_more_starts_and_samples_are_added_to_those_that_are_there(tmp_path):
    out = tmp_path / "run"
    collect(config(out, n=2), QUIET)
    few = there(out)
    collect(config(out, n=5, samples=2), QUIET)
    many = there(out)
    assert len(many) == 10 and len(few) == 2
    assert [t for t in many if t in few] == few
    assert lines(out) == 10
    collect(config(out, n=1), QUIET)
    assert len(there(out)) == 10, "to ask for fewer takes nothing away"


@pytest.mark.parametrize(
    "changes", [{"model": "random"}, {"horizon": 3}, {"seed": 1}, {"split": "test"},
                {"action_format": "act"}, {"instruction": "Guess."}, {"temperature": 0.5}],
)  # fmt: skip
def test_episodes_of_other_settings_are_not_mixed_in(tmp_path, changes):
    out = tmp_path / "run"
    collect(config(out, n=1), QUIET)
    (name,) = changes
    with pytest.raises(BadRequest, match=f"{name} was .*Choose another --out"):
        collect(config(out, **changes), QUIET)
    assert lines(out) == 1


def test_episodes_of_a_model_before_further_training_are_not_mixed_in(tmp_path):
    shutil.copytree(local_path("starter:textcraft/warm_policy"), tmp_path / "model")
    settings = {"mix_policy": f"hf:{tmp_path / 'model'}", "mix_rate": 0.5, "turn_max_tokens": 4}
    out = tmp_path / "run"
    collect(config(out, n=1, **settings), QUIET)
    collect(config(out, n=2, **settings), QUIET)
    assert lines(out) == 2
    with (tmp_path / "model" / "model.safetensors").open("r+b") as weights:
        weights.seek(-4, os.SEEK_END)
        weights.write(b"\x00\x00\x80\x3f")
    with pytest.raises(ConfigError, match="before it was trained further; choose another --out"):
        collect(config(out, n=3, **settings), QUIET)
    assert lines(out) == 2


def test_a_policy_that_is_not_there_leaves_no_trace(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(BadRequest, match="no model"):
        collect(config(out, model="./nowhere"), QUIET)
    assert not out.exists()
    assert collect(config(out), QUIET) == 0


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(BadRequest, match="contains no collection"):
        collect(config(tmp_path), QUIET)
    RunStore.create(tmp_path / "run", {"config": {"method": "rl"}})
    with pytest.raises(BadRequest, match="contains no collection"):
        collect(config(tmp_path / "run"), QUIET)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["thesis.txt"]


def test_settings_of_another_type_are_rejected():
    with pytest.raises(ConfigError, match="collect needs a CollectConfig; got '5'"):
        collect(5)


def test_what_is_kept_may_change_and_nothing_is_played_for_it(tmp_path):
    out = tmp_path / "run"
    asked = config(out, model="random", horizon=3, samples=4)
    collect(asked, QUIET)
    everything, _ = read_demonstrations([out])
    wins = [t for t in everything.selected if t.success]
    assert 0 < len(wins) < len(everything.selected)
    before = lines(out)
    collect(replace(asked, keep=EpisodeFilter(success=True)), QUIET)
    assert lines(out) == before
    successes, read = read_demonstrations([out])
    assert successes.selected == wins and len(read.trajectories) == len(everything.selected)
    assert successes.left_out == {"no success": len(everything.selected) - len(wins)}
    assert RunStore.open(out).read_json("summary.json")["kept"] == len(wins)
    both, _ = read_demonstrations([out], pairs=True)
    assert len(both.selected) == len(everything.selected), "a pair has two sides"
    assert make_pairs(both.selected)


def test_samples_of_one_start_share_their_world_and_starts_do_not(tmp_path):
    tasks = worlds.Guess.tasks
    starts = collection_starts(config(tmp_path, n=7, samples=2), tasks)
    size = len(tasks.split("train"))
    assert len(starts) == 14
    by_group: dict[int, list] = {}
    for start in starts:
        by_group.setdefault(start.group, []).append(start)
    for pair in by_group.values():
        assert len({(s.task, s.seed) for s in pair}) == 1
        assert sorted(s.sample for s in pair) == [0, 1]
    assert len({(s.task, s.seed) for s in starts}) == 7
    assert len({s.task for s in starts[: 2 * size]}) == min(7, size), "each task once, then again"


def test_an_expert_speaks_in_the_format_that_is_asked_for(tmp_path):
    collect(config(tmp_path / "run", action_format="act", n=1), QUIET)
    (played,) = there(tmp_path / "run")
    assert played.turns[0].response == f"Action:\n{played.turns[0].action}"
    assert played.instruction.endswith("Action:\nyour action")


def test_an_expert_thinks_where_the_format_has_a_place_for_it(tmp_path):
    settings = {"env": TEXTCRAFT, "n": 2, "mix_policy": "random", "mix_rate": 0.3}
    collect(config(tmp_path / "run", action_format="react", **settings), QUIET)
    turns = [turn for played in there(tmp_path / "run") for turn in played.turns]
    experts = [turn for turn in turns if turn.info.get("loss", True)]
    assert 0 < len(experts) < len(turns)
    for turn in turns:
        thought = turn.response.removeprefix("Thought:\n").partition("\n\nAction:\n")[0]
        assert turn.response.endswith(f"\n\nAction:\n{turn.action}")
        assert (", have " in thought) == (turn in experts)


def test_actions_of_an_expert_are_written_as_calls_only_where_a_model_learns(tmp_path):
    collect(config(tmp_path / "run", action_format="tools", n=1), QUIET)
    (played,) = there(tmp_path / "run")
    assert played.turns[0].response == played.turns[0].action


def test_lost_episodes_are_not_kept_and_are_played_when_asked_again(tmp_path):
    own = {"legacy": False}  # or the server would be the one that other tests share
    asked = config(tmp_path / "run", env=TEXTCRAFT, env_kwargs=own, n=12)
    store = opened(asked)
    with (
        closing(local_server(TEXTCRAFT, own)) as server,
        RolloutRunner(TEXTCRAFT, [server.address]) as rollout_runner,
    ):
        starts = collection_starts(asked, rollout_runner.tasks)
        actors = killing(server.process.pid, [])
        lost = play_starts(store, rollout_runner, actors, starts, asked, "", QUIET)
    assert len(lost) > 0 and lines(tmp_path / "run") == 12 - len(lost)
    assert {t.outcome for t in lost} == {"environment_lost"}
    assert collect(asked, QUIET) == 0
    assert [t.outcome for t in there(tmp_path / "run")] == ["success"] * 12


def test_a_model_collects_with_its_tokens(tmp_path):
    model = save_tiny_policy(tmp_path / "model")
    asked = config(
        tmp_path / "run", env=TEXTCRAFT, model=model, n=2, samples=2, horizon=2,
        turn_max_tokens=4, max_tokens=2000,
    )  # fmt: skip
    assert collect(asked, QUIET) == 0
    played = there(tmp_path / "run")
    assert len(played) == 4
    for trajectory in played:
        assert sum(trajectory.tokens.loss_mask) > 0
        assert trajectory.policy == model


def test_tokens_that_could_not_be_counted_are_refused_before_the_play(tmp_path):
    with pytest.raises(BadRequest, match="--tokenizer"):
        collect(config(tmp_path / "run", keep=EpisodeFilter(max_episode_tokens=9)), QUIET)
    assert not (tmp_path / "run").exists()


def test_turns_of_another_policy_are_context_and_the_first_policy_goes_on_from_them(tmp_path):
    mixed = {"env": TEXTCRAFT, "n": 30, "horizon": 30, "mix_policy": "random", "mix_rate": 0.3}
    assert collect(config(tmp_path / "run", **mixed), QUIET) == 0
    episodes = there(tmp_path / "run")
    turns = [turn for episode in episodes for turn in episode.turns]
    context = [turn for turn in turns if turn.info.get("loss") is False]
    assert 0.15 < len(context) / len(turns) < 0.5
    own_words = {turn.action for turn in turns if turn not in context}
    assert {turn.action for turn in context} - own_words, "detours that the expert would not take"
    assert not any(turn.info.get("invalid_action") for turn in turns)
    assert all(episode.success for episode in episodes), "the expert finds a way from anywhere"
    tokenizer = textcraft_tokenizer()
    for episode in episodes:
        (row,) = EpisodeTokenizer(tokenizer).rows(episode)
        trained = [i for i, m in zip(row.completion_ids, row.loss_mask, strict=True) if m]
        own = [t.response for t in episode.turns if t not in context]
        shown = tokenizer.decode(trained, skip_special_tokens=True)
        assert "".join(shown.split()) == "".join("".join(own).split())
    assert collect(config(tmp_path / "again", **mixed), QUIET) == 0
    assert there(tmp_path / "again") == episodes


def test_turns_of_another_policy_are_learned_if_that_is_asked_for(tmp_path):
    mixed = {"env": TEXTCRAFT, "n": 6, "horizon": 30, "mix_policy": "random", "mix_rate": 0.5}
    for name, asked in (("context", {}), ("learned", {"mix_loss": True})):
        assert collect(config(tmp_path / name, **mixed, **asked), QUIET) == 0
    context, learned = there(tmp_path / "context"), there(tmp_path / "learned")
    assert [[t.action for t in e.turns] for e in context] == [
        [t.action for t in e.turns] for e in learned
    ]
    assert not any("loss" in turn.info for episode in learned for turn in episode.turns)
    tokenizer = EpisodeTokenizer(textcraft_tokenizer())
    for one, other in zip(context, learned, strict=True):
        (fewer,), (more,) = tokenizer.rows(one), tokenizer.rows(other)
        assert fewer.completion_ids == more.completion_ids
        assert sum(fewer.loss_mask) < sum(more.loss_mask)
    with pytest.raises(ConfigError, match="--mix-loss needs --mix-policy"):
        collect(config(tmp_path / "none", mix_loss=True), QUIET)


def test_a_model_that_takes_some_turns_sees_those_of_the_expert_as_its_own(tmp_path):
    model = save_tiny_policy(tmp_path / "model")
    words = {"env": TEXTCRAFT, "n": 4, "horizon": 12, "mix_rate": 0.5, "turn_max_tokens": 8}
    out = tmp_path / "run"
    assert collect(config(out, mix_policy=model, max_tokens=4096, **words), QUIET) == 0
    episodes = there(out)
    assert all(episode.tokens is None for episode in episodes)
    kinds = {turn.info.get("loss") is False for episode in episodes for turn in episode.turns}
    assert kinds == {True, False}


@pytest.mark.parametrize("rate", [0.0, 1.0, 7.0])
def test_a_rate_that_mixes_nothing_is_rejected(tmp_path, rate):
    with pytest.raises(ConfigError, match=r"mix_rate is at most 1, got|between 0 and 1"):
        collect(config(tmp_path / "run", mix_policy="random", mix_rate=rate), QUIET)
    assert not (tmp_path / "run").exists()
