"""The index over run stores: what it finds, how it follows, what it says is missing."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import msgspec
import pytest

from agentgym_env.errors import BadRequest
from agentgym_env.run_store import RunStore
from agentgym_viewer import indexer as indexing
from agentgym_viewer.episodes import EpisodeReader
from agentgym_viewer.index import EpisodeIndex
from agentgym_viewer.indexer import Indexer
from agentgym_viewer.query import (
    adjacent,
    count_of,
    facets,
    facets_among,
    page_of,
    played,
    query_of,
)
from agentgym_viewer.runs import Runs
from tests.viewer.viewing import as_line, episode, made_up, small_run


class Shown:
    """Runs that are indexed here and now, without the thread."""

    def __init__(self, *roots: Path, index: Path) -> None:
        self.index = EpisodeIndex(index)
        self.runs = Runs(roots, self.index)
        self.indexer = Indexer(self.index)
        self.read()

    def read(self) -> None:
        self.runs.look()
        self.indexer.follow({self.runs.ids[n]: path for n, path in self.runs.paths.items()})
        while self.indexer.read_batches():
            pass

    def query(self, **asked):
        given = {k: v if isinstance(v, list) else [v] for k, v in asked.items()}
        return query_of(self.index, self.runs.ids, given)

    def tasks(self, **asked):
        return [row["task"] for row in page_of(self.index, self.query(**asked), 0, 500)]

    def count(self, **asked):
        return count_of(self.index, self.query(**asked))["total"]


@pytest.fixture
def show(tmp_path):
    """Opens runs; closes them in the end."""
    opened = []

    def show(*roots, index="i.sqlite"):
        opened.append(Shown(*roots, index=tmp_path / index))
        return opened[-1]

    yield show
    for one in opened:
        one.index.close()


def test_every_filter_finds_what_a_plain_loop_finds(tmp_path, show):
    store = RunStore.create(tmp_path / "run", {})
    episodes = list(made_up(1500, seed=3))
    store.append_trajectories("train", episodes)
    shown = show(store.path)
    wanted = {
        "outcome=failure": lambda t: t.outcome == "failure",
        "success=1": lambda t: t.success,
        "turns=2..4": lambda t: 2 <= len(t.turns) <= 4,
        "turns=5": lambda t: len(t.turns) == 5,
        "step=20..": lambda t: t.step >= 20,
        "reward=..0.5": lambda t: t.reward <= 0.5,
        "category=b": lambda t: t.category == "b",
        "task=task-17": lambda t: t.task == "task-17",
        "group=3": lambda t: t.group == 3,
        'q="oak wool bed"': lambda t: any(
            "oak wool bed" in text for text in texts(t)
        ),
        "q=task-1 inv": lambda t: any(
            w.startswith("1") for w in t.task.split("-")
        ) and any("inv" in text for text in texts(t)),
    }  # fmt: skip
    for text, fits in wanted.items():
        name, _, value = text.partition("=")
        expected = [t for t in episodes if fits(t)]
        assert expected, text
        assert shown.count(**{name: value}) == len(expected), text
    both = shown.count(outcome=["failure", "success"], env="tests/Guess-v0")
    by_hand = [t for t in episodes if t.outcome in ("failure", "success")]
    assert both == sum(t.env == "tests/Guess-v0" for t in by_hand)
    told = dict(map(tuple, facets(shown.index, list(shown.runs.ids.values()))["outcome"]))
    assert told["failure"] == sum(t.outcome == "failure" for t in episodes)
    assert shown.tasks(sort="task") == sorted(t.task for t in episodes)[:500]


def texts(trajectory):
    yield trajectory.observation
    for turn in trajectory.turns:
        yield from (turn.response, turn.action, turn.observation)


def test_next_and_previous_walk_the_table_in_its_own_order(tmp_path, show):
    store = RunStore.create(tmp_path / "run", {})
    store.append_trajectories("train", made_up(120))
    shown = show(store.path)
    for sort in ("-step", "task", "-reward", "turns"):
        query = shown.query(sort=sort, outcome="success")
        ids = [row["id"] for row in page_of(shown.index, query, 0, 500)]
        walked, at = [], ids[0]
        while True:
            walked.append(at)
            near = adjacent(shown.index, query, at)
            if near["next"] is None:
                break
            back = adjacent(shown.index, query, near["next"]["id"])["previous"]
            assert back is not None and back["id"] == at
            at = near["next"]["id"]
        assert walked == ids, sort


def test_what_is_appended_is_read_from_where_it_was_left(tmp_path, show, monkeypatch):
    monkeypatch.setattr(indexing, "BATCH_BYTES", 1000)
    store = RunStore.create(tmp_path / "run", {})
    path = store.path / "trajectories" / "train.jsonl"
    shown = show(store.path)
    assert shown.count() == 0
    store.append_trajectories("train", [episode(i) for i in range(20)])
    shown.read()
    assert shown.count() == 20
    # A line that is being written is not there yet, whatever part of it is.
    line = as_line(episode(20))
    for part in (line[:10], line[10:-1], line[-1:]):
        with path.open("ab") as file:
            file.write(part)
        before = shown.count()
        shown.read()
        assert (before, shown.count()) == (20, 21 if part == b"\n" else 20)
    assert shown.count(q='"of 20"') == 1


def test_steps_that_a_resumed_run_repeats_are_read_again(tmp_path, show):
    store = RunStore.create(tmp_path / "run", {})
    old = [msgspec.structs.replace(episode(i), step=i) for i in range(40)]
    new = [msgspec.structs.replace(one, task=f"again-{one.step}") for one in old[30:]]
    store.append_trajectories("train", old)
    shown = show(store.path)
    assert shown.count() == 40
    store.keep_steps(30)
    store.append_trajectories("train", [*new, *new])  # as long as before, and longer
    shown.read()
    assert shown.count() == 50
    assert shown.tasks(file="train", task="again-35") == ["again-35"] * 2
    assert shown.tasks(file="train", task="task-35") == []


def test_a_store_cut_in_the_middle_of_a_line_opens_and_says_what_is_missing(tmp_path, show):
    store = small_run(tmp_path / "run")
    path = store.path / "trajectories" / "train.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    metrics = store.path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-5])
    shown = show(store.path)
    assert shown.count(file="train") == 7
    said = shown.runs.missing("run")
    assert len(said) == 2
    assert said[0].startswith("metrics.jsonl: line 40 could not be read")
    assert "trajectories/train.jsonl: line 8, the last, is truncated after" in said[1]
    # The run goes on: the cut line ends there, and what follows is read.
    store.append_trajectories("train", [episode(99)])
    shown.read()
    assert shown.count(file="train") == 8
    assert "trajectories/train.jsonl: line 8 could not be read" in shown.runs.missing("run")[1]
    assert shown.tasks(file="train", task="task-99") == ["task-99"]


def test_a_store_with_lines_of_rubbish_shows_all_others(tmp_path, show):
    store = RunStore.create(tmp_path / "run", {})
    path = store.path / "trajectories" / "train.jsonl"
    good = as_line(episode(1))
    rubbish = [b"\xff\xfe\n", b"null\n", b"[]\n", b'{"turns": 3}\n', b"\n", good[:50] + b"\n"]
    rubbish.append(b'{"task": "of no environment"}\n')
    sparse = b'{"env": "e", "task": "sparse"}\n'
    path.write_bytes(b"".join(good + bad for bad in rubbish) + sparse)
    shown = show(store.path)
    assert shown.count() == len(rubbish) + 1
    assert "line 2 and 5 more could not be read" in shown.runs.missing("run")[0]
    place = shown.index.location(1, "train", path.stat().st_size - len(sparse))
    assert place is not None
    assert EpisodeReader(shown.index).page(store.path, place)["task"] == "sparse"


@pytest.mark.parametrize("name", ["run.json", "summary.json", "report.json"])
def test_a_broken_json_file_is_named(name, tmp_path, show):
    store = small_run(tmp_path / "run")
    (store.path / name).write_text('{"config": {"env"')
    shown = show(store.path)
    assert shown.runs.missing("run") == [f"{name} is not a JSON object and is ignored."]
    assert shown.runs.facts("run")["name"] == "run"


def test_evaluations_tell_what_they_were_asked_for(tmp_path, show):
    plan = {"env": "e", "horizon": 9, "policies": [{"label": "expert"}, {"label": "mine"}]}
    store = RunStore.create(tmp_path / "run", {"kind": "evaluation", "evaluation": plan})
    shown = show(store.path)
    assert shown.runs.facts("run")["state"] == "running"
    store.write_json("report.json", {})
    facts = shown.runs.facts("run")
    assert facts["settings"] == {"env": "e", "policy": "expert, mine", "horizon": "9"}
    assert facts["state"] == "complete"


@pytest.mark.parametrize(
    ("config", "shown_as"),
    [
        ({"method": "sft"}, "SFT"),
        ({"method": "dpo"}, "DPO"),
        ({"method": "evolve"}, "AgentEvol"),
        ({"method": "rl", "algorithm": "gspo"}, "gspo"),
        ({"method": "import"}, None),
    ],
)
def test_a_run_says_by_what_it_trained(config, shown_as, tmp_path, show):
    store = RunStore.create(tmp_path / "run", {"config": config})
    settings = show(store.path).runs.facts("run")["settings"]
    assert settings.get("algorithm") == shown_as


def test_a_value_is_counted_among_what_the_other_filters_leave(tmp_path, show):
    for name, seed in (("a", 1), ("b", 2)):
        store = RunStore.create(tmp_path / name, {})
        store.append_trajectories("train", list(made_up(200, seed)))
    shown = show(tmp_path)
    every = facets(shown.index, list(shown.runs.ids.values()))

    def counted(name, **asked):
        return facets_among(shown.index, shown.runs.ids, asked, every)[name]

    assert counted("outcome") == every["outcome"]
    for asked in (
        {"run": ["b"]},
        {"category": ["a", "b"], "turns": ["2..3"]},
        {"q": ["oak"], "success": ["1"]},
        {"env": ["no-such"]},
    ):
        for value, times in counted("outcome", **asked):
            assert times == shown.count(outcome=value, **asked), (asked, value)
    # Its own filter does not count: otherwise no second value could be chosen.
    assert counted("outcome", outcome=["failure"]) == every["outcome"]
    assert dict(map(tuple, counted("run", run=["a"], outcome=["failure"]))) == {
        run: shown.count(run=name, outcome="failure") for name, run in shown.runs.ids.items()
    }


@pytest.mark.parametrize(
    ("own", "shown_as"),
    [([[5], [10, 13]], "5, 10 → 13"), ([[8], [8]], "8"), ([[], [9]], "30, 9"), ([[], []], "30")],
)
def test_the_horizons_of_several_environments_are_shown(own, shown_as, tmp_path, show):
    envs = [{"env": f"e{i}", "horizon": horizon} for i, horizon in enumerate(own)]
    store = RunStore.create(tmp_path / "run", {"config": {"envs": envs, "horizon": [30]}})
    settings = show(store.path).runs.facts("run")["settings"]
    assert (settings["env"], settings["horizon"]) == ("e0, e1", shown_as)


def test_a_run_that_began_anew_under_the_same_name_is_read_anew(tmp_path, show):
    store = small_run(tmp_path / "run")
    shown = show(tmp_path / "run")
    assert shown.count() == 9
    store = RunStore.create(tmp_path / "run", {})
    store.append_trajectories("train", [episode(5)])
    shown.read()
    assert shown.tasks(file="train") == ["task-5"]
    assert shown.count(q="answer") == 1


def test_the_index_is_kept_and_shared(tmp_path, show):
    store = small_run(tmp_path / "run")
    first = show(store.path)
    stamp = first.index.stamp()
    second = show(store.path)
    assert not second.indexer.read_batches(), "there was nothing left to read"
    assert second.index.stamp() == stamp
    store.append_trajectories("train", [episode(50 + i) for i in range(200)])
    # Two viewers read the same file at once; each episode is there once.
    readers = [threading.Thread(target=one.read) for one in (first, second)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert first.count() == second.count() == 209
    assert first.index.stamp() == second.index.stamp() > stamp
    assert first.count(q="task") == 209
    (tmp_path / "run").rename(tmp_path / "gone")
    first.index.forget_runs_that_are_gone()
    assert first.index.rows("SELECT COUNT(*) AS n FROM episodes")[0]["n"] == 0


def test_an_index_of_another_version_is_made_anew(tmp_path, show):
    store = small_run(tmp_path / "run")
    shown = show(store.path)
    with shown.index.writing() as connection:
        connection.execute("PRAGMA user_version = 999")
    again = show(store.path)
    assert again.count() == 9 and again.count(q="answer") == 8


def test_a_file_that_is_no_index_is_not_touched(tmp_path):
    (tmp_path / "i.sqlite").write_text("my letters to my aunt " * 100)
    with pytest.raises(BadRequest, match="is not an index"):
        EpisodeIndex(tmp_path / "i.sqlite")
    assert (tmp_path / "i.sqlite").read_text().startswith("my letters")


def test_runs_are_named_by_their_folders_and_found_in_folders(tmp_path, show):
    for path in ("a/run", "b/run", "b/other"):
        small_run(tmp_path / path)
    shown = show(tmp_path / "a", tmp_path / "b")
    assert sorted(shown.runs.paths) == ["b~run", "other", "run"]
    assert shown.count() == 27 and shown.count(run="b~run") == 9
    small_run(tmp_path / "b" / "later")
    shown.read()
    assert shown.count() == 36
    parts = played(shown.index, shown.runs.ids["later"])
    assert [(p["file"], p["episodes"], p["success"]) for p in parts] == [
        ("eval_after", 1, 0.0), ("train", 8, 1.0)
    ]  # fmt: skip


def test_evaluations_below_the_folder_of_all_runs_are_found_with_their_success(tmp_path):
    small_run(tmp_path / "runs" / "train")
    evaluation = small_run(tmp_path / "runs" / "eval" / "textcraft")
    small_run(evaluation.path / "inside")
    reports = {"reports": {"expert": {"success": 1.0}, "random": {"success": 0.125}, "odd": 3}}
    (evaluation.path / "report.json").write_text(json.dumps(reports))
    runs = Runs([tmp_path / "runs"], EpisodeIndex(tmp_path / "i.sqlite"))
    assert sorted(runs.paths) == ["textcraft", "train"]
    assert runs.facts("textcraft")["evaluated"] == [1.0, 0.125, None]
    assert runs.facts("train")["evaluated"] == []


def test_a_run_with_links_to_it_is_listed_once_by_its_own_name(tmp_path, show):
    root = tmp_path / "runs"
    for name in ("first", "nested/second"):
        small_run(root / name)
    (root / "a-link").symlink_to("first")
    (root / "latest").symlink_to("first")
    (root / "a-self").symlink_to(".")
    shown = show(root)
    assert shown.runs.paths == {"first": root / "first", "second": root / "nested/second"}
    assert shown.count() == 18
    (root / "later").symlink_to("nested/second")
    shown.read()
    assert len(shown.runs.paths) == 2 and shown.count() == 18


def test_a_run_that_is_only_a_link_is_listed_once(tmp_path, show):
    disk = tmp_path / "disk"
    small_run(disk / "big")
    (disk / "another-name").symlink_to("big")
    root = tmp_path / "runs"
    root.mkdir()
    (root / "linked").symlink_to(disk / "big")
    (root / "newest").symlink_to("linked")
    assert show(root).runs.paths == {"linked": root / "linked"}
    (root / "linked").unlink()
    (root / "newest").unlink()
    (root / "disk").symlink_to(disk)
    shown = show(root, index="j.sqlite")
    assert shown.runs.paths == {"big": root / "disk" / "big"} and shown.count() == 9


def test_a_folder_of_trajectories_that_links_out_of_its_run_is_named_with_the_remedy(
    tmp_path, show
):
    moved = tmp_path / "disk" / "trajectories"
    run = small_run(tmp_path / "run").path
    moved.parent.mkdir()
    (run / "trajectories").rename(moved)
    (run / "trajectories").symlink_to(moved)
    shown = show(run)
    assert shown.count() == 0
    assert [line for line in shown.runs.missing("run") if "trajectories" in line] == [
        f"trajectories is a link out of the run's folder, to {moved}, and is ignored. "
        "Name the run's real folder, or replace the link with a copy."
    ]


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="no run in"):
        Runs([tmp_path], EpisodeIndex(tmp_path / "i.sqlite"))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"turns": ["many"]}, "turns must be a number or a range"),
        ({"step": [".."]}, "step must be a number or a range"),
        (
            {"sort": ["id; DROP TABLE episodes"]},
            "cannot sort by 'id; DROP TABLE episodes'; choose from",
        ),
    ],
)
def test_a_filter_that_cannot_be_is_refused(asked, told, tmp_path, show):
    shown = show(small_run(tmp_path / "run").path)
    with pytest.raises(BadRequest, match=told):
        shown.query(**asked)


@pytest.mark.parametrize("text", ['"', "AND", "NOT x", "a*b", "(", "body:x", "%", "\x00", "NEAR("])
def test_whatever_is_typed_is_searched_as_words(text, tmp_path, show):
    shown = show(small_run(tmp_path / "run").path)
    assert shown.count(q=text) == 0


def test_without_fts5_tasks_are_searched(tmp_path, show):
    shown = show(small_run(tmp_path / "run").path)
    shown.index.finds_text = False
    assert shown.count(q="TASK-1") == 5
    assert shown.count(q="answer") == 0
