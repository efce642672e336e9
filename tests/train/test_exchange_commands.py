"""`agentgym export` and `agentgym import`, from the command line to the files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest
import typer
from typer.testing import CliRunner

from agentgym_env.cli.main import make_app
from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory
from agentgym_train.cli.exchange import export, import_
from agentgym_train.data.datasets import read_demonstrations
from tests.train.test_formats import BAD, episode

EPISODES = [
    episode("ab"), episode("x", False), episode("abc"), episode("ab", seed=1, observation="Then."),
    episode("y", False, task="plank"),
]  # fmt: skip


def call(command, *words: object) -> str:
    """What the command printed, on one line."""
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def run_of(path: Path, episodes: list[Trajectory] = EPISODES, name: str = "train") -> Path:
    store = RunStore.create(path, {"config": {"method": "rl"}})
    store.append_trajectories(name, episodes)
    return path


def imported(folder: Path) -> list[Trajectory]:
    found, broken = RunStore.open(folder).trajectories("imported")
    assert broken == []
    return found


@pytest.mark.parametrize("form", ["trajectories", "conversations", "messages"])
@pytest.mark.parametrize("suffix", ["json", "jsonl", "JSON"])
def test_an_export_imported_again_gives_the_same_trajectories(tmp_path, form, suffix):
    out = tmp_path / f"x.{suffix}"
    said = call(export, run_of(tmp_path / "run"), "--format", form, "--out", out)
    assert "5 rows from 5 of 5 episodes" in said
    assert "b: 5 episodes, 3 successes." in call(import_, out, "--out", tmp_path / "b")
    assert imported(tmp_path / "b") == EPISODES


@pytest.mark.parametrize("form", ["conversations", "messages"])
def test_a_parquet_file_is_one_and_gives_the_same_trajectories(tmp_path, form):
    out = tmp_path / "x.parquet"
    said = call(export, run_of(tmp_path / "run"), "--format", form, "--out", out)
    assert "5 rows from 5 of 5 episodes" in said
    column = "messages" if form == "messages" else "conversations"
    assert pyarrow.parquet.read_table(out).schema.field(column).type.num_fields == 1
    call(import_, out, "--out", tmp_path / "b")
    assert imported(tmp_path / "b") == EPISODES
    (tmp_path / "broken.parquet").write_bytes(out.read_bytes()[:-9])
    with pytest.raises(BadRequest, match=r"cannot read .*broken.parquet as Parquet"):
        call(import_, tmp_path / "broken.parquet", "--out", tmp_path / "c")


@pytest.mark.parametrize(
    ("name", "form", "says"),
    [
        ("x.csv", "messages", r"ends in \.csv; name a file in \.jsonl or \.json or \.parquet"),
        ("x.jsonl.gz", "messages", r"ends in \.gz"),
        ("x", "conversations", "has no ending"),
        ("x.parquet", "trajectories", r"name a file in \.jsonl or \.json$"),
    ],
)
def test_an_ending_that_is_not_written_is_refused(tmp_path, name, form, says):
    out = tmp_path / name
    with pytest.raises(ConfigError, match=says):
        call(export, run_of(tmp_path / "run"), "--format", form, "--out", out)
    assert not out.exists()


@pytest.mark.parametrize("name", ["demos.jsonl", "x.parquet", "x.CSV"])
def test_a_run_folder_is_not_called_like_a_file(tmp_path, name):
    call(export, run_of(tmp_path / "run"), "--out", tmp_path / "x.jsonl")
    with pytest.raises(ConfigError, match="is a folder here"):
        call(import_, tmp_path / "x.jsonl", "--out", tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "--env", "textcraft", "--policy", "expert", "--json", "r.csv"],
        ["eval", "--env", "textcraft", "--policy", "expert", "--out", "r.json"],
        ["collect", "--env", "textcraft", "--policy", "expert", "--out", "r.jsonl"],
        ["audit", "no-model", "--json", "r.parquet"],
        ["bench", "textcraft", "--json", "r.txt"],
        ["check", "textcraft", "--exploit", "--exploit-out", "r.json"],
        ["index", "corpus.jsonl", "--out", "r.parquet"],
    ],
)
def test_every_command_refuses_an_ending_that_it_does_not_write(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"^{words[-2]} {words[-1]} "):
        make_app(words)(words, standalone_mode=False)
    assert not any(tmp_path.iterdir())


def test_filters_choose_among_several_runs(tmp_path):
    runs = [run_of(tmp_path / "a"), run_of(tmp_path / "b", [episode("q")])]
    out = tmp_path / "x.jsonl"
    said = call(export, *runs, "--out", out, "--success", "--max-turns", 2, "--unique")
    assert "2 rows from 2 of 6 episodes" in said
    assert "2 no success" in said and "1 over 2 turns" in said and "1 repeated" in said
    kept, _ = read_demonstrations([out])
    assert kept.selected == [EPISODES[0], episode("q")]


def test_held_out_episodes_are_not_exported(tmp_path):
    run = run_of(tmp_path / "run", EPISODES[:1])
    RunStore.open(run).append_trajectories("eval_after", EPISODES[1:])
    assert "1 rows" in call(export, run, "--out", tmp_path / "x.jsonl")


def test_broken_lines_are_named_and_the_rest_is_kept(tmp_path):
    run = run_of(tmp_path / "run")
    file = run / "trajectories" / "train.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], lines[1][:40], *lines[2:]]))
    said = call(export, run, "--out", tmp_path / "x.jsonl")
    assert f"{file}, line 2 cannot be read and is left out: " in said and "4 rows" in said
    text = (tmp_path / "x.jsonl").read_text()
    (tmp_path / "x.jsonl").write_text(BAD["cut"] + "\n" + BAD["unknown"] + "\n" + text)
    said = call(import_, tmp_path / "x.jsonl", "--out", tmp_path / "back")
    assert f"{tmp_path}/x.jsonl, line 1 cannot be read" in said and "x.jsonl, line 2 cannot" in said
    assert "2 rows could not be read" in said
    assert len(imported(tmp_path / "back")) == 4


def test_what_would_be_empty_is_refused_with_the_reason(tmp_path):
    run, out = run_of(tmp_path / "run", [episode("x", False)]), tmp_path / "x.jsonl"
    with pytest.raises(BadRequest, match="1 no success"):
        call(export, run, "--out", out, "--success")
    for form in ("parquet", "dpo"):
        for command in (export, import_):
            with pytest.raises(
                BadRequest,
                match=f"no format '{form}'; choose from trajectories, conversations, messages",
            ):
                call(command, run, "--out", out.with_suffix(".x"), "--format", form)
    assert not out.exists()
    tasks = tmp_path / "textcraft_test.json"
    tasks.write_text(json.dumps([{"item_id": "textcraft_1", "conversations": None}]))
    with pytest.raises(BadRequest, match="names a task and has no conversation"):
        call(import_, tasks, "--out", tmp_path / "back")
    with pytest.raises(BadRequest, match="no run in"):
        call(export, tmp_path / "nowhere", "--out", out)


def test_an_import_goes_into_a_new_folder_only(tmp_path):
    out = tmp_path / "x.jsonl"
    run = run_of(tmp_path / "run")
    call(export, run, "--out", out)
    with pytest.raises(BadRequest, match="not empty"):
        call(import_, out, "--out", run)
    call(import_, out, "--out", tmp_path / "back")
    # With a summary the viewer knows that it is complete.
    summary = json.loads((tmp_path / "back" / "summary.json").read_text())
    assert summary["episodes"] >= summary["successes"] > 0


def test_a_run_that_was_only_evaluated_names_its_evaluations(tmp_path):
    run = run_of(tmp_path / "run")
    (file,) = (run / "trajectories").glob("*.jsonl")
    file.rename(file.with_name("eval_after.jsonl"))
    with pytest.raises(
        BadRequest, match=r"name one of its evaluations, such as .*eval_after\.jsonl"
    ):
        call(export, run, "--out", tmp_path / "x.jsonl")
    call(export, run / "trajectories" / "eval_after.jsonl", "--out", tmp_path / "x.jsonl")
