"""`agentgym eval --suite paper` and AgentGym's files of item ids."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agentgym_env.cli import main
from agentgym_env.errors import BadRequest, ConfigError, UnknownSplit
from agentgym_env.run_lock import LOCK_FILE, folder_lock
from agentgym_env.run_store import RunStore
from agentgym_env.text_env import TaskSet
from agentgym_train.config.files import local_path
from agentgym_train.config.learn import AgentEvolConfig, SFTConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.evaluation import suite
from agentgym_train.evaluation.paper import PAPER_ROWS, WORLDS, SuiteWorld
from agentgym_train.evaluation.plan import chosen_tasks, eval_starts
from agentgym_train.evaluation.policies import ModelOptions, PolicyWords
from agentgym_train.evaluation.suite import (
    SuitePlan,
    WorldResult,
    differences,
    run_suite,
    suite_grid,
    suite_tasks,
)
from agentgym_train.runs.preflight import prepared

pytestmark = pytest.mark.usefixtures("textcraft_server")
KNOWN = TaskSet(
    {"train": ["a", "b"], "test": ["c"]},
    aliases={"world_0": "a", "world_1": "c"},
    selections={"paper": ["c", "a"]},
)
BY_NAME = {world.name: world for world in WORLDS}


def exit_of(*words: str) -> int:
    """The exit status of a command."""
    with pytest.raises(SystemExit) as end:
        main(words)
    return int(end.value.code or 0)


def contents(folder: Path) -> dict[Path, bytes]:
    """The files below a folder, but for locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK_FILE)
    return {path: path.read_bytes() for path in files}


def plan_of(*names: str, **settings) -> SuitePlan:
    words = PolicyWords(names, {}, None, ModelOptions(), 16)
    return SuitePlan(policies=words.by_world(suite.world_ids()), **settings)


def test_agentgyms_item_ids_are_read_in_order_and_once(tmp_path):
    rows = [{"item_id": "world_1", "conversations": None}, {"item_id": "world_0"}]
    path = tmp_path / "world_test.json"
    path.write_text(f"\n {json.dumps([*rows, rows[0]])}")
    assert chosen_tasks(KNOWN, [str(path)], "test", None, None) == (["c", "a"], "several")
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert chosen_tasks(KNOWN, [str(path)], "test", None, None) == (["c", "a"], "several")
    path.write_text(json.dumps(rows[:1]))
    assert chosen_tasks(KNOWN, [str(path)], "test", None, None) == (["c"], "test")


@pytest.mark.parametrize("text", ['[{"id": "world_1"}]', '["world_1"]', "[{", '[{"item_id": 1}]',
                                  '{"item_id": "world_1"}\n{"id": "world_0"}'])  # fmt: skip
def test_a_file_that_is_not_agentgyms_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match="is no list of JSON objects with an item_id"):
        chosen_tasks(KNOWN, [str(tmp_path / "x.json")], "test", None, None)


def test_where_the_papers_tasks_are_missing_it_is_said_what_they_need():
    without = TaskSet({"train": ["a"], "test": ["b"]})
    with pytest.raises(ConfigError, match=r"no split 'paper'.*need its own sites.*Search-R1"):
        chosen_tasks(without, None, "paper", None, None)
    with pytest.raises(UnknownSplit):
        chosen_tasks(without, None, "dev", None, None)


def test_episodes_for_an_evaluation_on_the_papers_tasks_are_collected_from_its_training_tasks():
    ours, papers = (
        SFTConfig(env="textcraft", data=["x"], eval={"split": s}) for s in ("test", "paper")
    )
    assert papers.collect_command() == f"{ours.collect_command()} --split paper_train"


def test_an_item_id_of_another_world_is_refused_with_its_place(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('[{"item_id": "world_0"}, {"item_id": "babyai_3"}]')
    with pytest.raises(ConfigError, match=r"x\.json', entry 2: no task 'babyai_3'"):
        chosen_tasks(KNOWN, [str(path)], "test", None, None)


def test_a_file_of_ids_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "ids.txt").write_text("a\nc\n", encoding="utf-8-sig")
    assert chosen_tasks(KNOWN, [str(tmp_path / "ids.txt")], "test", None, None)[0] == ["a", "c"]
    (tmp_path / "ids.json").write_text('[{"item_id": "world_1"}]', encoding="utf-8-sig")
    assert chosen_tasks(KNOWN, [str(tmp_path / "ids.json")], "test", None, None)[0] == ["c"]


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


def test_the_papers_tasks_are_used_or_those_that_stand_in_for_them():
    assert suite_tasks(KNOWN, BY_NAME["TextCraft"]) == (("c", "a"), "paper")
    ids = [f"{site}/{number}" for site in ("shop", "map") for number in range(10)]
    own = TaskSet({"test": ids}, {task: task.partition("/")[0] for task in ids})
    world = SuiteWorld("X", "x", 5, stand_in="others", quotas={"shop": 2, "map": 3})
    chosen = (["shop/0", "shop/5", "map/0", "map/3", "map/6"], "test")
    assert suite_tasks(own, world) == chosen
    with pytest.raises(ConfigError, match="10 of 12 others of shop could stand in"):
        suite_tasks(own, SuiteWorld("X", "x", 5, quotas={"shop": 12}))
    with pytest.raises(ConfigError, match="its tasks lack some of the paper's"):
        suite_tasks(TaskSet({"test": ids}), BY_NAME["SciWorld"])


def test_the_suite_has_the_papers_sizes_and_a_row_for_each_of_its_models():
    assert [(world.name, world.horizon) for world in WORLDS] == [
        ("TextCraft", 30), ("BabyAI", 20), ("SciWorld", 30), ("WebArena", 15), ("Search", 30),
    ]  # fmt: skip
    assert sum(BY_NAME["WebArena"].quotas.values()) == 50
    assert sum(BY_NAME["Search"].quotas.values()) == 400
    for row in PAPER_ROWS.values():
        assert set(row) == set(BY_NAME)
    assert PAPER_ROWS["AgentGym-RL 7B, ScalingInter"]["TextCraft"] == 0.91


def test_the_first_tasks_of_each_category_are_a_smaller_suite(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "WORLDS", (BY_NAME["TextCraft"],))
    words = ["eval", "--suite", "paper", "--policy", "random", "--per-category", "2"]
    assert exit_of(*words, "--horizon", "1", "--out", str(tmp_path)) == 0
    found = json.loads((tmp_path / "suite.json").read_text())["worlds"]["TextCraft"]
    assert found["tasks"] == 8, "two of each depth"
    assert "only the first 2 tasks of each category" in found["differences"]


def test_a_world_that_cannot_run_is_reported_with_the_reason_and_no_zero(
    tmp_path, monkeypatch, capsys
):
    """The suite over two worlds, the other of which lacks what it needs."""
    broken = SuiteWorld("SciWorld", "agentgym/Nowhere-v0", 30)
    monkeypatch.setattr(suite, "WORLDS", (BY_NAME["TextCraft"], broken))
    out = tmp_path / "suite"
    words = ["eval", "--suite", "paper", "--policy", "expert", "--policy", "random"]
    assert exit_of(*words, "--limit", "6", "--out", str(out)) == 0
    text = capsys.readouterr().out
    assert "not run" in text and "paper" in text
    found = json.loads((out / "suite.json").read_text())["worlds"]
    assert "agentgym/Nowhere-v0" in found["SciWorld"]["not_run"]
    assert found["SciWorld"]["reports"] == {}
    crafted = found["TextCraft"]
    assert crafted["not_run"] is None and crafted["split"] == "paper" and crafted["tasks"] == 6
    assert crafted["reports"]["expert"]["success"] == 1.0
    assert crafted["reports"]["random"]["horizon"] == 30
    assert "only the first 6 tasks" in crafted["differences"]
    assert set(crafted["unsolved"]) == {"expert", "random"} and not crafted["unsolved"]["expert"]
    for name in ("suite.md", "suite.png", "textcraft/report.json"):
        assert (out / name).stat().st_size > 100
    before = (out / "textcraft/trajectories/expert.jsonl").read_bytes()
    assert exit_of(*words, "--limit", "6", "--out", str(out)) == 0  # resumed: nothing is played
    assert (out / "textcraft/trajectories/expert.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"search": {"questions": "searchr1:nowhere"}}, "name a retriever"),
        ({"babyai": {"levels": ["GoToObj"]}}, "BabyAI lacks some of the paper's tasks with"),
    ],
)
def test_settings_with_which_a_world_cannot_play_the_papers_tasks_are_an_error_before_any_is_played(
    settings, told, tmp_path, monkeypatch, capfd
):
    worlds = tuple(BY_NAME[name] for name in ("TextCraft", "BabyAI", "Search"))
    monkeypatch.setattr(suite, "WORLDS", worlds)
    words = ["eval", "--suite", "paper", "--policy", "expert", "--limit", "1"]
    words += ["--env-kwargs", json.dumps(settings)]
    assert exit_of(*words, "--out", str(tmp_path / "suite")) == 2
    assert told in " ".join(capfd.readouterr().err.split())
    assert not (tmp_path / "suite").exists()


def test_a_suite_leaves_a_folder_alone_that_is_in_use_or_has_something_else(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "WORLDS", (BY_NAME["TextCraft"],))
    words = ["eval", "--suite", "paper", "--policy", "random", "--limit", "1", "--horizon", "2"]
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


def test_a_folder_of_two_names_is_no_id_of_a_hub(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(suite, "WORLDS", (BY_NAME["TextCraft"], BY_NAME["BabyAI"]))
    shutil.copytree(local_path("starter:textcraft/warm_policy"), tmp_path / "textcraft" / "m")
    monkeypatch.chdir(tmp_path)
    words = ["eval", "--suite", "paper", "--policy", "mine={world}/m", "--policy", "random"]
    words += ["--limit", "1", "--horizon", "1", "--max-tokens", "300", "--out", "suite"]
    assert exit_of(*words) == 0
    found = json.loads((tmp_path / "suite" / "suite.json").read_text())["worlds"]
    assert "no model in ./babyai/m" in found["BabyAI"]["skipped"]["mine"]
    assert set(found["TextCraft"]["reports"]) == {"mine", "random"}
    notes = found["TextCraft"]["differences"]
    assert any(note.startswith("at most 512 tokens per turn and 300 per episode") for note in notes)


@pytest.mark.usefixtures("without_java")
def test_a_world_that_cannot_run_here_is_reported_with_settings_too(tmp_path, monkeypatch):
    """Without Java, whatever the settings of SciWorld."""
    monkeypatch.setattr(suite, "WORLDS", (BY_NAME["TextCraft"], BY_NAME["SciWorld"]))
    words = ["eval", "--suite", "paper", "--policy", "expert", "--limit", "1"]
    words += ["--env-kwargs", '{"sciworld": {"simplifications": "easy"}}']
    assert exit_of(*words, "--out", str(tmp_path / "suite")) == 0
    found = json.loads((tmp_path / "suite" / "suite.json").read_text())["worlds"]
    assert "Java" in found["SciWorld"]["not_run"] and found["TextCraft"]["reports"]


def test_a_model_for_each_world_plays_its_own_with_the_settings_of_its_training(
    tmp_path, monkeypatch, capsys
):
    """Two worlds: in one there is a model, and a config with settings; the other has neither."""
    monkeypatch.setattr(suite, "WORLDS", (BY_NAME["TextCraft"], BY_NAME["BabyAI"]))
    run = tmp_path / "runs" / "textcraft"
    shutil.copytree(local_path("starter:textcraft/warm_policy"), run / "model")
    (run / "config.yaml").write_text("instruction: Craft.\nturn_max_tokens: 9\nmax_tokens: 300\n")
    runs = f"{tmp_path}/runs/{{world}}"
    words = ["eval", "--suite", "paper", "--policy", f"mine={runs}/model", "--policy", "random"]
    words += ["--settings-of", runs, "--max-tokens", "280", "--limit", "2", "--horizon", "2"]
    assert exit_of(*words, "--out", str(tmp_path / "suite")) == 0
    played = RunStore.open(tmp_path / "suite" / "textcraft")
    facts = played.read_json("run.json")["evaluation"]
    told = [facts[name] for name in ("instruction", "turn_max_tokens", "max_tokens")]
    assert told == ["Craft.", 9, 280], "an option prevails over the config"
    assert len(played.trajectories("mine")[0]) == 2
    found = json.loads((tmp_path / "suite" / "suite.json").read_text())["worlds"]
    assert set(found["TextCraft"]["reports"]) == {"mine", "random"}
    assert set(found["BabyAI"]["reports"]) == {"random"}
    assert "no model in" in found["BabyAI"]["skipped"]["mine"]
    assert "not run" in (tmp_path / "suite" / "suite.md").read_text()
    begun = capsys.readouterr().out.partition("BabyAI is played without mine: ")
    assert "no model in" in begun[2] and "━" not in begun[0], "said before anything is played"
    assert exit_of("eval", "--suite", "paper", "--policy", f"mine={runs}/none/model") == 2
    assert "mine is missing in every world" in " ".join(capsys.readouterr().err.split())


def test_other_settings_in_the_folder_of_a_suite_change_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(suite, "WORLDS", (BY_NAME["TextCraft"], BY_NAME["BabyAI"]))
    words = ["eval", "--suite", "paper", "--policy", "random", "--limit", "1", "--horizon", "2"]
    words += ["--out", str(tmp_path / "suite")]
    assert exit_of(*words) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    for other, told in (
        (["--seed", "5"], "another suite, with other seed"),
        (["--env-kwargs", '{"babyai": {"legacy": true}}'], "another suite, with other env_kwargs"),
        (["--env-kwargs", '{"babyai": {"legcy": true}}'], "did you mean legacy"),
    ):
        assert exit_of(*words, *other) == 2
        assert told in " ".join(capsys.readouterr().err.split())
        assert before == {path: path.read_bytes() for path in before}


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
    tmp_path, monkeypatch, capsys, unavailable
):
    monkeypatch.setattr(suite, "WORLDS", (BY_NAME["TextCraft"],))
    lost = f"m=openai:gpt@{unavailable}"
    words = ["--policy", "expert", "--policy", lost, "--limit", "1", "--horizon", "1"]
    assert exit_of("eval", "--suite", "paper", *words, "--out", str(tmp_path / "suite")) == 0
    found = json.loads((tmp_path / "suite" / "suite.json").read_text())["worlds"]["TextCraft"]
    assert set(found["reports"]) == {"expert"} and found["not_run"] is None
    assert "all 1 episodes were lost" in found["skipped"]["m"]
    one = ["eval", "--env", "textcraft", *words, "--out", str(tmp_path / "one")]
    assert exit_of(*one) == 1
    assert "m: all 1 episodes were lost" in " ".join(capsys.readouterr().out.split())
    assert set(json.loads((tmp_path / "one" / "report.json").read_text())["reports"]) == {"expert"}
    assert exit_of(*one, "--baseline", "m") == 2


def test_what_a_model_is_asked_differs_from_the_paper_and_is_marked():
    named = {"sciworld": {"simplifications": "openDoors"}}
    expert = plan_of("expert", env_kwargs=named, samples=4)
    assert differences(expert, BY_NAME["SciWorld"], "paper", named["sciworld"])[-2:] == [
        'env_kwargs {"simplifications": "openDoors"}',
        "mean of 4 episodes per task; in the paper 1",
    ]
    given = {"instruction": "Play.", "temperature": 0.5}
    words = PolicyWords(["starter:textcraft/warm_policy"], given, None, ModelOptions(), 16)
    model = SuitePlan(policies=words.by_world(suite.world_ids()))
    assert differences(model, BY_NAME["SciWorld"], "paper", {})[-4:] == [
        "temperature 0.5; in the paper 1",
        "another instruction",
        "at most 512 tokens per turn and 8192 per episode",
        "action format plain; in the paper react",
    ]


def test_if_no_world_can_run_it_is_an_error(tmp_path, monkeypatch):
    from rich.console import Console

    monkeypatch.setattr(suite, "WORLDS", (SuiteWorld("SciWorld", "agentgym/Nowhere-v0", 30),))
    with pytest.raises(ConfigError, match="no world can be run; SciWorld: "):
        run_suite(plan_of("expert"), tmp_path, Console(quiet=True))
    assert not any(tmp_path.iterdir())


def test_each_difference_is_marked_in_the_header_and_explained_once():
    results = [
        WorldResult(BY_NAME["TextCraft"], horizon=30, split="paper", differences=["x", "y"]),
        WorldResult(BY_NAME["BabyAI"], horizon=20, split="paper", differences=["y"]),
        WorldResult(BY_NAME["SciWorld"], not_run="no Java"),
    ]
    assert suite._joined("no Java:\n  install\x1b it") == "no Java: install\\x1b it"
    grid, notes = suite_grid(["expert"], results)
    assert list(grid.header) == ["", "TextCraft [1] [2]", "BabyAI [2]", "SciWorld [3]"]
    assert notes[:3] == ["[1] x", "[2] y", "[3] not run: no Java"]
    assert grid.rows[-1] == ["AgentGym-RL 7B, ScalingInter (paper)", "0.910", "0.967", "0.570"]
    assert "expert" in [row[0] for row in grid.rows]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--suite", "paper", "--env", "textcraft"], "leave out --env"),
        (["--suite", "paper", "--tasks", "stick"], "leave out --tasks"),
        (["--suite", "paper", "--server", "http://127.0.0.1:1"], "leave out --server"),
        (["--suite", "papers"], "did you mean paper"),
        (["--suite", "paper", "--env-kwargs", '{"legacy": true}'], "an object for each world"),
        ([], "name an environment with --env, or use --suite paper"),
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


def test_the_settings_of_a_world_reach_it(tmp_path):
    with pytest.raises(BadRequest, match="an object for each world"):
        plan_of("expert", env_kwargs={"chess": {}})
    one, other = (plan_of("expert", env_kwargs={"textcraft": {"legacy": v}}) for v in (True, False))
    assert one.folder() != other.folder() and one.folder().parent == Path("runs/eval")
