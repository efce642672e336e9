"""`agentgym eval --suite FILE`, the paper's suite among them, and AgentGym's files of item ids."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from agentgym_env.cli import main
from agentgym_env.errors import ConfigError
from agentgym_env.run_lock import LOCK_FILE, folder_lock
from agentgym_env.run_store import RunStore
from agentgym_env.text_env import TaskSet
from agentgym_train.config.files import local_path
from agentgym_train.config.learn import AgentEvolConfig, SFTConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.evaluation.plan import Evaluation, eval_starts
from agentgym_train.evaluation.suite import read_suite
from agentgym_train.runs.preflight import prepared

pytestmark = pytest.mark.usefixtures("textcraft_server")
KNOWN = TaskSet(
    {"train": ["a", "b"], "test": ["c"]},
    aliases={"world_0": "a", "world_1": "c"},
    selections={"paper": ["c", "a"]},
)
PAPER = "starter:suites/paper.yaml"
CRAFT = {"name": "TextCraft", "env": "textcraft", "split": "paper", "horizon": 2, "limit": 1}
BABY = {"name": "BabyAI", "env": "babyai", "split": "paper", "horizon": 2, "limit": 1}


def exit_of(*words: str) -> int:
    """The exit status of a command."""
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


def contents(folder: Path) -> dict[Path, bytes]:
    """The files below a folder, but for locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK_FILE)
    return {path: path.read_bytes() for path in files}


def written(folder: Path, *evaluations: dict, **more) -> str:
    """The file of a suite."""
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump({"evaluations": list(evaluations), **more}))
    return str(file)


def chosen(*tasks: str) -> tuple[list[str], str]:
    """The tasks of an evaluation and their split."""
    return Evaluation(env="x", tasks=list(tasks)).chosen(KNOWN)


def found_in(folder: Path) -> dict[str, dict]:
    """The results of a suite, by evaluation."""
    return json.loads((folder / "suite.json").read_text())["evaluations"]


def test_agentgyms_item_ids_are_read_in_order_and_once(tmp_path):
    rows = [{"item_id": "world_1", "conversations": None}, {"item_id": "world_0"}]
    path = tmp_path / "world_test.json"
    path.write_text(f"\n {json.dumps([*rows, rows[0]])}")
    assert chosen(str(path)) == (["c", "a"], "several")
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert chosen(str(path)) == (["c", "a"], "several")
    path.write_text(json.dumps(rows[:1]))
    assert chosen(str(path)) == (["c"], "test")


@pytest.mark.parametrize("text", ['[{"id": "world_1"}]', '["world_1"]', "[{", '[{"item_id": 1}]',
                                  '{"item_id": "world_1"}\n{"id": "world_0"}'])  # fmt: skip
def test_a_file_that_is_not_agentgyms_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match="is no list of JSON objects with an item_id"):
        chosen(str(tmp_path / "x.json"))


def test_episodes_for_an_evaluation_on_the_papers_tasks_are_collected_from_its_training_tasks():
    ours, papers = (
        SFTConfig(env="textcraft", data=["x"], eval={"split": s}) for s in ("test", "paper")
    )
    assert papers.collect_command() == f"{ours.collect_command()} --split paper_train"


def test_an_item_id_of_another_world_is_refused_with_its_place(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('[{"item_id": "world_0"}, {"item_id": "babyai_3"}]')
    with pytest.raises(ConfigError, match=r"x\.json', entry 2: no task 'babyai_3'"):
        chosen(str(path))


def test_a_file_of_ids_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "ids.txt").write_text("a\nc\n", encoding="utf-8-sig")
    assert chosen(str(tmp_path / "ids.txt"))[0] == ["a", "c"]
    (tmp_path / "ids.json").write_text('[{"item_id": "world_1"}]', encoding="utf-8-sig")
    assert chosen(str(tmp_path / "ids.json"))[0] == ["c"]


def test_episodes_record_the_split_that_was_asked_for():
    starts = eval_starts(KNOWN, "paper", 1, seed=0)
    assert [(start.task, start.split) for start in starts] == [("c", "paper"), ("a", "paper")]
    # The seed of an episode does not depend on it.
    assert starts[0].seed == eval_starts(KNOWN, "test", 1, seed=0)[0].seed


def test_an_evaluation_of_item_ids_plays_the_papers_tasks(tmp_path):
    items = [{"item_id": f"textcraft_{number}"} for number in (0, 533)]
    (tmp_path / "textcraft_test.json").write_text(json.dumps(items))
    base = ["eval", "--env", "textcraft", "--policy", "expert", "--horizon", "30"]
    base += ["--env-kwargs", '{"legacy": true}']
    tasks = ["--tasks", str(tmp_path / "textcraft_test.json"), "--out", str(tmp_path / "ids")]
    assert exit_of(*base, *tasks) == 0
    split = ["--split", "paper", "--limit", "2", "--out", str(tmp_path / "paper")]
    assert exit_of(*base, *split) == 0
    played, _ = RunStore.open(tmp_path / "ids").trajectories("expert")
    assert len({t.task for t in played}) == 2 and all(t.success for t in played)
    assert any("Crafted 4 minecraft:" in turn.observation for t in played for turn in t.turns)
    played, _ = RunStore.open(tmp_path / "paper").trajectories("expert")
    assert {t.split for t in played} == {"paper"} and len(played) == 2


GUESS = """
from agentgym_env.text_env import TaskSet, TextEnv

class Guess(TextEnv):
    instruction = "Guess the number."
    tasks = TaskSet({"train": ["1"], "test": ["2", "3"]})

    def _reset(self, task):
        self.number = task
        return "A number from 1 to 3?"

    def _step(self, action):
        return "Right." if action == self.number else "Wrong.", float(action == self.number), True

    def expert(self):
        yield self.number
"""


def test_a_suite_of_ones_own_worlds_has_one_table_and_published_rows(tmp_path, monkeypatch, capsys):
    """As docs/evaluation.md describes it, with a world of the working directory."""
    (tmp_path / "guessing.py").write_text(GUESS)
    (tmp_path / "mine.yaml").write_text(
        """
evaluations:
  - name: Crafting
    env: textcraft
    horizon: 30
    limit: 5
    published: {Model A: 0.5}
    notes: [easy]
  - name: Guessing
    env: guessing:Guess
    samples: 2
    published: {Model A: 0.25, Model B: 1}
notes: [all local]
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["eval", "--suite", "mine.yaml", "--policy", "expert", "--policy", "dice=random"]
    assert exit_of(*words, "--out", "out") == 0
    capsys.readouterr()
    found = found_in(tmp_path / "out")
    assert [(f["tasks"], f["split"], f["horizon"]) for f in found.values()] == [
        (5, "test", 30), (2, "test", 30),
    ]  # fmt: skip
    assert [f["reports"]["expert"]["success"] for f in found.values()] == [1.0, 1.0]
    assert found["Guessing"]["reports"]["dice"]["episodes"] == 4
    assert found["Crafting"]["unsolved"]["expert"] == []
    page = (tmp_path / "out" / "suite.md").read_text()
    header, rule, *rows = [line for line in page.splitlines() if line.startswith("|")]
    assert "Crafting" in header and "1" in header and rule.startswith("|---")
    names = [row.split("|")[1].strip() for row in rows]
    assert names == ["tasks", "maximum turns", "expert", "dice", "Model A", "Model B"]
    cells = [[cell.strip() for cell in row.split("|")[2:4]] for row in rows[-2:]]
    assert cells == [["0.500", "0.250"], ["", "1.000"]]
    assert "easy" in page and "all local" in page
    for name in ("suite.png", "crafting/report.json", "guessing/report.md"):
        assert (tmp_path / "out" / name).stat().st_size > 100
    before = contents(tmp_path / "out")
    assert exit_of(*words, "--out", "out") == 0
    assert "5 of 5 episodes are stored already." in capsys.readouterr().out
    episodes = {path: text for path, text in before.items() if path.suffix == ".jsonl"}
    assert len(episodes) == 4 and all(path.read_bytes() == t for path, t in episodes.items())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"horizn": 3}, "unknown key horizn in suite.evaluations[1]; did you mean horizon?"),
        ({"horizon": 0}, "suite.evaluations[1].horizon is at least 1, got 0"),
        ({"published": {"m": 91}}, "published[...] is at most 1, got {'m': 91}"),
        ({"name": "textcraft"}, "evaluations[1] is named 'textcraft' like evaluations[0]"),
        ({"name": ""}, "evaluations[1] needs a name and an env"),
        ({"env": "babyia"}, "evaluations[1] (BabyAI): no environment 'babyia'"),
        ({"env": "nowhere:World"}, "evaluation BabyAI: nowhere:World cannot be imported"),
        ({"split": "papers"}, "evaluation BabyAI: no split 'papers'"),
        ({"split": []}, "evaluation BabyAI: split is empty"),
        ({"tasks": ["x"]}, "evaluation BabyAI: --tasks 'x' is not a file"),
        ({"env_kwargs": {"legcy": True}}, "did you mean legacy"),
        ({"env_kwargs": {"levels": ["GoToObj"]}}, "evaluation BabyAI: no split 'paper'"),
        ({"wrappers": ["nowhere:Wrapper"]}, "evaluation BabyAI: "),
    ],
)  # fmt: skip
def test_a_bad_suite_is_one_error_with_file_and_entry_before_anything_is_played(
    tmp_path, capfd, change, told
):
    file = written(tmp_path, CRAFT, {**BABY, **change})
    words = ["eval", "--suite", file, "--policy", "random", "--out", str(tmp_path / "out")]
    assert exit_of(*words) == 2
    error = " ".join(capfd.readouterr().err.split())
    assert told in error and file in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("evaluations: []", "evaluations is empty"),
        ("notes: [x]", "evaluations is empty"),
        ("evaluations: [{name: x}]", "evaluations[0] needs a name and an env"),
        ("evaluations: textcraft", "suite.evaluations must be a list"),
        ("- {name: x}", "evaluations[0] needs a name and an env"),
        ("textcraft", "has no keys and values"),
        ("evaluations: [", "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_suite_is_an_error(tmp_path, text, told):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_suite(str(tmp_path / "x.yaml"))
    assert told in str(error.value) and "x.yaml" in str(error.value)


def test_a_suite_may_be_the_list_of_its_evaluations_alone(tmp_path):
    alone, whole = tmp_path / "alone.yaml", tmp_path / "whole.yaml"
    alone.write_text("- {name: x, env: textcraft}")
    whole.write_text("evaluations: [{name: x, env: textcraft}]")
    assert read_suite(str(alone)) == read_suite(str(whole))


def test_the_papers_suite_has_its_sizes_and_a_row_for_each_of_its_models(tmp_path):
    suite = read_suite(PAPER)
    assert [(entry.name, entry.horizon) for entry in suite.evaluations] == [
        ("TextCraft", 30), ("BabyAI", 20), ("SciWorld", 30), ("WebArena", 15), ("Search", 30),
    ]  # fmt: skip
    names = [list(entry.published) for entry in suite.evaluations]
    assert len(names[0]) == 5 and names == [names[0]] * 5
    scaled = [entry.published[names[0][-1]] for entry in suite.evaluations]
    assert scaled == [0.91, 0.967, 0.57, 0.26, 0.382]


def test_a_list_of_splits_means_the_first_that_there_is_and_a_note_says_so(tmp_path):
    file = written(
        tmp_path, {**CRAFT, "split": ["paper", "test"]}, {**BABY, "split": ["x", "test"]}
    )
    out = tmp_path / "out"
    assert exit_of("eval", "--suite", file, "--policy", "random", "--out", str(out)) == 0
    first, second = found_in(out).values()
    assert first["split"] == "paper" and first["notes"] == []
    assert second["split"] == "test"
    assert "split test, as there is no split x here: not comparable" in second["notes"][0]


def test_options_prevail_over_the_file_and_are_noted(tmp_path):
    file = written(tmp_path, {**CRAFT, "limit": 0}, {**BABY, "env_kwargs": {"legacy": True}})
    words = ["eval", "--suite", file, "--policy", "random", "--per-category", "2", "--horizon", "1"]
    words += ["--limit", "8", "--env-kwargs", '{"TextCraft": {"legacy": true}}', "--seed", "7"]
    assert exit_of(*words, "--out", str(tmp_path / "out")) == 0
    found = found_in(tmp_path / "out")["TextCraft"]
    assert (found["tasks"], found["horizon"]) == (8, 1), "two of each depth"
    assert found["env_kwargs"] == {"legacy": True}
    assert found["notes"] == [
        "--horizon 1 (otherwise 2)", "--limit 8", "--per-category 2",
        '--env-kwargs {"legacy": true}',
    ]  # fmt: skip
    stored = RunStore.open(tmp_path / "out" / "textcraft").read_json("run.json")["evaluation"]
    assert (stored["seed"], stored["horizon"]) == (7, 1)


def test_a_policy_is_not_named_like_a_published_result(tmp_path, capsys):
    file = written(tmp_path, {**CRAFT, "published": {"random": 0.5}})
    assert exit_of("eval", "--suite", file, "--policy", "random") == 2
    assert "random is also the name of a published result" in capsys.readouterr().err


@pytest.mark.usefixtures("without_java")
def test_an_evaluation_that_cannot_run_here_is_reported_with_the_reason_and_no_zero(
    tmp_path, capsys
):
    """Without Java, and without a server."""
    java = {"name": "SciWorld", "env": "sciworld", "env_kwargs": {"simplifications": "easy"}}
    away = {"name": "Away", "env": "mine/World-v0", "servers": ["http://127.0.0.1:9"]}
    out = tmp_path / "out"
    words = ["--policy", "random", "--out", str(out)]
    assert exit_of("eval", "--suite", written(tmp_path, CRAFT, java, away), *words) == 0
    found = found_in(out)
    assert "Java" in found["SciWorld"]["not_run"] and found["SciWorld"]["reports"] == {}
    assert "cannot be reached" in found["Away"]["not_run"]
    assert found["TextCraft"]["not_run"] is None and found["TextCraft"]["reports"]
    assert (out / "suite.md").read_text().count("not run") == 4, "a cell and a note each"
    words[-1] = str(tmp_path / "none")
    assert exit_of("eval", "--suite", written(tmp_path, java), *words) == 2
    assert "no evaluation can be run; SciWorld: " in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "none").exists()


def test_a_suite_leaves_a_folder_alone_that_is_in_use_or_has_something_else(tmp_path):
    words = ["eval", "--suite", written(tmp_path, CRAFT), "--policy", "random"]
    out, other, file = tmp_path / "suite", tmp_path / "other", tmp_path / "file"
    assert exit_of(*words, "--out", str(out)) == 0
    with folder_lock(out, "--out"):
        before = contents(tmp_path)
        assert exit_of(*words, "--out", str(out), "--fresh", "--seed", "7") == 2
        assert contents(tmp_path) == before
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    file.write_text("mine")
    before = contents(tmp_path)
    for path in (other, file):
        for more in ((), ("--fresh",)):
            assert exit_of(*words, "--out", str(path), *more) == 2
    assert contents(tmp_path) == before
    assert exit_of(*words, "--out", str(out), "--fresh", "--seed", "7") == 0
    assert RunStore.open(out / "textcraft").read_json("run.json")["evaluation"]["seed"] == 7
    assert RunStore.open(out / "textcraft.old-1").read_json("run.json")["evaluation"]["seed"] == 0


def test_a_model_for_each_evaluation_plays_its_own_with_the_settings_of_its_training(
    tmp_path, monkeypatch, capsys
):
    """For one evaluation there is a model, and a config with settings; the other has neither."""
    monkeypatch.chdir(tmp_path)
    file = written(tmp_path, CRAFT, BABY)
    shutil.copytree(local_path("starter:textcraft/warm_policy"), tmp_path / "textcraft" / "model")
    (tmp_path / "textcraft" / "config.yaml").write_text(
        "instruction: Craft.\nturn_max_tokens: 9\nmax_tokens: 300\n"
    )
    words = ["eval", "--suite", file, "--policy", "mine={name}/model", "--policy", "random"]
    assert exit_of(*words, "--settings-of", "{name}", "--max-tokens", "280", "--out", "out") == 0
    played = RunStore.open(tmp_path / "out" / "textcraft")
    facts = played.read_json("run.json")["evaluation"]
    told = [facts[name] for name in ("instruction", "turn_max_tokens", "max_tokens")]
    assert told == ["Craft.", 9, 280], "an option prevails over the config"
    assert len(played.trajectories("mine")[0]) == 1
    found = found_in(tmp_path / "out")
    assert set(found["TextCraft"]["reports"]) == {"mine", "random"}
    assert set(found["BabyAI"]["reports"]) == {"random"}
    assert "no model in ./babyai/model" in found["BabyAI"]["skipped"]["mine"]
    assert "not run" in (tmp_path / "out" / "suite.md").read_text()
    begun = capsys.readouterr().out.partition("BabyAI is played without mine: ")
    assert "no model in" in begun[2] and "━" not in begun[0], "said before anything is played"
    assert exit_of("eval", "--suite", file, "--policy", "mine={name}/none") == 2
    assert "mine is missing in every evaluation" in " ".join(capsys.readouterr().err.split())
    assert exit_of("eval", "--suite", file, "--policy", "{world}/model") == 2
    assert "write {name} instead of {world}" in " ".join(capsys.readouterr().err.split())


def test_other_settings_in_the_folder_of_a_suite_change_nothing(tmp_path, capsys):
    out = tmp_path / "suite"
    words = ["--policy", "random", "--out", str(out)]
    assert exit_of("eval", "--suite", written(tmp_path, CRAFT, BABY), *words) == 0
    before = contents(out)
    capsys.readouterr()
    for other, told in (
        (["--seed", "5"], "another evaluation: seed is 0 there, 5 here"),
        (
            ["--env-kwargs", '{"babyai": {"legacy": true}}'],
            "env_kwargs is {} there",
        ),
        (["--policy", "expert"], "another evaluation: policies is random=random there"),
    ):
        assert exit_of("eval", "--suite", str(tmp_path / "mine.yaml"), *words, *other) == 2
        assert told in " ".join(capsys.readouterr().err.split())
        assert before == contents(out)
    # Another evaluation and another note are not another suite.
    longer = written(tmp_path, {**CRAFT, "notes": ["x"]}, BABY, {**BABY, "name": "Baby 2"})
    assert exit_of("eval", "--suite", longer, *words) == 0
    assert list(found_in(out)) == ["TextCraft", "BabyAI", "Baby 2"]
    assert all(path.read_bytes() == before[path] for path in before if path.suffix == ".jsonl")


class Unavailable(BaseHTTPRequestHandler):
    """An endpoint that is never ready, and may be asked again at once."""

    def do_POST(self) -> None:
        self.send_response(503)
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def unavailable():
    with ThreadingHTTPServer(("127.0.0.1", 0), Unavailable) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_a_policy_that_loses_all_its_episodes_leaves_the_others_their_results(
    tmp_path, capsys, unavailable
):
    lost = f"m=openai:gpt@{unavailable}"
    policies = ["--policy", "expert", "--policy", lost]
    out = ["--out", str(tmp_path / "suite")]
    assert exit_of("eval", "--suite", written(tmp_path, CRAFT), *policies, *out) == 0
    found = found_in(tmp_path / "suite")["TextCraft"]
    assert set(found["reports"]) == {"expert"} and found["not_run"] is None
    assert "all 1 episodes were lost" in found["skipped"]["m"]
    one = ["eval", "--env", "textcraft", "--limit", "1", "--horizon", "1", *policies]
    one += ["--out", str(tmp_path / "one")]
    assert exit_of(*one) == 1
    assert "m: all 1 episodes were lost" in " ".join(capsys.readouterr().out.split())
    assert set(json.loads((tmp_path / "one" / "report.json").read_text())["reports"]) == {"expert"}
    assert exit_of(*one, "--baseline", "m") == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--suite", PAPER, "--env", "textcraft"], "leave out --env"),
        (["--suite", PAPER, "--tasks", "stick"], "leave out --tasks"),
        (["--suite", PAPER, "--server", "http://127.0.0.1:1"], "leave out --server"),
        (["--suite", "paper"], "--suite paper is now --suite starter:suites/paper.yaml"),
        (["--suite", "papers.yaml"], "no config file papers.yaml"),
        (["--suite", PAPER, "--env-kwargs", '{"legacy": true}'], "an object for each evaluation"),
        ([], "name an environment with --env, or a file of several with --suite"),
    ],
)
def test_options_that_do_not_fit_a_suite_are_refused(capsys, words, told):
    assert exit_of("eval", "--policy", "random", *words) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def rl_config(folder: Path, **settings) -> RLConfig:
    return RLConfig(
        model="starter:textcraft/warm_policy", env="agentgym/TextCraft-v0",
        output_dir=str(folder), **settings,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("split", "shared"), [("train", "84 of the 100 tasks"), ("paper_train", None), ("paper", "100")]
)
def test_a_run_that_trains_on_its_evaluation_tasks_warns(tmp_path, caplog, split, shared):
    config = rl_config(tmp_path, split=split, eval={"split": "paper"})
    with caplog.at_level(logging.WARNING, logger="agentgym_train.runs.preflight"):
        runner = prepared(config)
    assert runner is not None
    runner.__exit__(None, None, None)
    told = " ".join(caplog.messages)
    assert (shared in told and "also in split" in told) if shared else not told


def test_an_agent_evol_run_warns_as_well(tmp_path, caplog):
    config = AgentEvolConfig(
        model="starter:textcraft/warm_policy", output_dir=str(tmp_path),
        env="agentgym/TextCraft-v0", eval={"split": "paper"},
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, logger="agentgym_train.runs.preflight"):
        worlds = prepared(config)
    worlds.__exit__(None, None, None)
    assert "84 of the 100 tasks" in caplog.text
