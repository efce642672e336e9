"""Search with questions of files: what is read, how tasks are numbered, what is refused."""

import json
import subprocess
import sys
import textwrap

import pytest

from agentgym_env.conformance import check_environment
from agentgym_env.errors import BadRequest
from agentgym_servers.worlds.search.env import Search
from agentgym_servers.worlds.search.tasks import ORIGINAL_NUMBERS, read_questions
from retrieving import FACTS, bm25_index


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return str(bm25_index(tmp_path_factory.mktemp("facts"), FACTS))


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def ask(number, **fields):
    return {"question": f"Question {number}?", "golden_answers": [f"answer {number}"], **fields}


def test_a_file_is_one_split_and_its_questions_are_asked(tmp_path, index):
    rows = [
        {"question": " What is Python? ", "golden_answers": ["a language", "a genus"], "id": "py"},
        {"question": "How many?", "answer": 3, "data_source": "counts"},
    ]
    env = Search(questions=write(tmp_path / "dev.jsonl", rows), retriever=index)
    assert env.tasks.splits == {"dev": ("dev/py", "dev/1")}
    assert (env.tasks.category("dev/py"), env.tasks.category("dev/1")) == (None, "counts")
    assert env.default_split == "dev"
    assert env.reset(options={"task": "dev/py"})[0] == "Question: What is Python?"
    assert 'Doc 1(Title: "Python (genus)")' in env.step("<search>snakes</search>")[0]
    assert env.step("<answer>Genus</answer>")[1] == 1.0
    env.reset(options={"task": "searchqa_1"})
    assert env.step("<answer>3</answer>")[1] == 1.0


def test_questions_of_files_have_no_expert(tmp_path, index):
    env = Search(questions=write(tmp_path / "train.jsonl", map(ask, range(8))), retriever=index)
    assert not env.has_expert()
    env.reset()
    with pytest.raises(NotImplementedError):
        env.expert_action()


@pytest.mark.slow
def test_questions_of_files_keep_every_promise(tmp_path, index):
    questions = write(tmp_path / "train.jsonl", map(ask, range(8)))
    kwargs = {"questions": questions, "retriever": index}
    found = {f.rule: f for f in check_environment("agentgym/Search-v0", kwargs, sessions=4)}
    assert [f for f in found.values() if not f.passed] == []
    assert not found["the expert solves the tasks it acts on"].applied


def test_a_folder_holds_a_split_a_file(tmp_path):
    for split, size in (("train", 3), ("test", 2)):
        write(tmp_path / f"{split}.jsonl", [ask(n, id=n) for n in range(size)])
    (tmp_path / "README.md").write_text("not a question")
    found = read_questions(str(tmp_path))
    assert {s: list(ids) for s, ids in found.tasks.splits.items()} == {
        "test": ["test/0", "test/1"], "train": ["train/0", "train/1", "train/2"],
    }  # fmt: skip
    assert found.tasks.canonical("searchqa_2") == "train/0", "the test split is counted first"


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"golden_answers": ["a", "b"]}, ("a", "b")),
        ({"answers": ["a"]}, ("a",)),
        ({"answers": {"text": ["a", "a b"], "answer_start": [0, 0]}}, ("a", "a b")),
        ({"answer": " a "}, ("a",)),
        ({"answer": 1911}, ("1911",)),
        ({"reward_model": {"style": "rule", "ground_truth": {"target": ["a"]}}}, ("a",)),
        ({"golden_answers": None, "answer": "a"}, ("a",)),
        # TriviaQA's own rows, and lists of such objects
        (
            {
                "golden_answers": None,
                "answer": {
                    "value": "Sinclair Lewis",
                    "aliases": ["Lewis, Sinclair", "Sinclair Lewis", "Grace Hegger"],
                    "normalized_value": "sinclair lewis",
                    "normalized_aliases": ["lewis sinclair", "sinclair lewis"],
                    "matched_wiki_entity_name": "",
                    "type": "WikipediaEntity",
                },
            },
            (
                "Sinclair Lewis",
                "Lewis, Sinclair",
                "Grace Hegger",
                "sinclair lewis",
                "lewis sinclair",
            ),
        ),
        ({"golden_answers": [{"aliases": ["a", "b"]}, {"value": "c"}]}, ("a", "b", "c")),
        # MuSiQue's and PopQA's
        ({"golden_answers": None, "answer": "a", "answer_aliases": ["b", "a"]}, ("a", "b")),
        ({"golden_answers": None, "possible_answers": '["a", "b"]'}, ("a", "b")),
    ],
)
def test_answers_are_found_under_their_usual_names(tmp_path, fields, answers):
    found = read_questions(write(tmp_path / "all.jsonl", [{"question": "Who?", **fields}]))
    assert found.items["all/0"].answers == answers


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3 is not JSON"),
        ("[1]", "line 3 is list, not an object"),
        ("{}", "line 3 has no text as its `question`"),
        ('{"question": 3, "answer": "a"}', "line 3 has no text as its `question`"),
        ('{"question": "Who?"}', "line 3 has no texts as its `golden_answers`"),
        ('{"question": "Who?", "golden_answers": []}', "line 3 has no texts"),
        ('{"question": "Who?", "golden_answers": ["a", ""]}', "line 3 has no texts"),
        ('{"question": "Who?", "golden_answers": ["a", null]}', "line 3 has no texts"),
        ('{"question": "Who?", "answer": true}', "line 3 has no texts as its `answer`, got True"),
        ('{"question": "Who?", "answer": {"type": "x"}}', "line 3 has no texts as its `answer`"),
        ('{"question": "Who?", "golden_answers": {"aliases": []}}', "`golden_answers`, got"),
        ('{"question": "Who?", "possible_answers": "[a"}', "`possible_answers` that are no JSON"),
        ('{"question": "Who?", "answer": "a", "id": 7}', "line 3 has the id of .*, line 1"),
    ],
)
def test_a_row_that_is_no_question_is_refused_with_its_line(tmp_path, line, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{json.dumps(ask(0, id='7'))}\n\n{line}\n{json.dumps(ask(1))}\n")
    with pytest.raises(BadRequest, match=message):
        read_questions(str(path))


def test_what_holds_no_questions_is_refused(tmp_path, index):
    (tmp_path / "empty.jsonl").write_text("\n")
    for where in ("empty.jsonl", "nowhere.jsonl", "questions.csv", ""):
        with pytest.raises(BadRequest, match="questions"):
            read_questions(str(tmp_path / "sub" if not where else tmp_path / where))
    with pytest.raises(BadRequest, match="come without passages; name a retriever"):
        Search(questions=write(tmp_path / "q.jsonl", [ask(0)]))


def search_r1_rows(source, count):
    return [ask(n, id=f"test_{n}", data_source=source) for n in range(count)]


def test_search_r1s_files_have_the_originals_numbers(tmp_path):
    rows = [*search_r1_rows("musique", 2_417), *search_r1_rows("bamboogle", 125)]
    write(tmp_path / "test.jsonl", rows)
    found = read_questions(f"searchr1:{tmp_path}")
    named = {n: found.tasks.canonical(f"searchqa_{n}") for n in (49_171, 51_587, 51_588, 51_712)}
    assert named == {
        49_171: "test/musique/0", 51_587: "test/musique/2416", 51_588: "test/bamboogle/0",
        51_712: "test/bamboogle/124",
    }  # fmt: skip
    assert found.tasks.category("test/bamboogle/7") == "bamboogle"
    assert found.items["test/bamboogle/7"].question == "Question 7?"
    assert "searchqa_51713" not in found.tasks


def test_the_originals_numbers_follow_one_another():
    ranges = [r for split in ("test", "train") for r in ORIGINAL_NUMBERS[split].values()]
    assert [first for first, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1] == (130_881, 221_328)


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("test", search_r1_rows("bamboogle", 124), "124 questions of bamboogle in test, and Agent"),
        ("train", search_r1_rows("musique", 1), "data_source 'musique'; train has nq, hotpotqa"),
        ("test", [ask(0)], "data_source None"),
        ("dev", search_r1_rows("nq", 1), "contains 'dev'; Search-R1's files are train and test"),
    ],
)
def test_files_that_are_not_search_r1s_are_refused_by_its_name(tmp_path, name, rows, message):
    write(tmp_path / f"{name}.jsonl", rows)
    with pytest.raises(BadRequest, match=message):
        read_questions(f"searchr1:{tmp_path}")


def test_parquet_files_are_read_like_lines(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {**row, "reward_model": {"ground_truth": {"target": row["golden_answers"]}}, "more": [1]}
        for row in search_r1_rows("bamboogle", 125)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "test.parquet")
    found = read_questions(f"searchr1:{tmp_path}")
    assert found.tasks.canonical("searchqa_51712") == "test/bamboogle/124"
    write(tmp_path / "test.jsonl", rows)
    with pytest.raises(BadRequest, match="the split 'test' in two files"):
        read_questions(str(tmp_path))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadRequest, match="cannot read the questions"):
        read_questions(str(tmp_path / "bad.parquet"))


def test_a_hugging_face_dataset_is_read(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "asked"
    for split, size in (("train", 3), ("test", 2)):
        write(folder / f"{split}.jsonl", map(ask, range(size)))
    found = read_questions(f"hf:{folder}")
    assert {s: len(ids) for s, ids in found.tasks.splits.items()} == {"train": 3, "test": 2}
    assert found.items["test/1"] == ("Question 1?", ("answer 1",))
    only = read_questions(f"hf:{folder}::test")
    assert list(only.tasks.splits) == ["test"]
    with pytest.raises(BadRequest, match="has no split 'dev'; there are train, test"):
        read_questions(f"hf:{folder}::dev")
    with pytest.raises(BadRequest, match="cannot load the dataset"):
        read_questions(f"hf:{tmp_path / 'nowhere'}")


def test_an_index_of_ones_own_is_searched_without_the_heavy_packages(tmp_path, index):
    script = textwrap.dedent("""
        import sys
        for package in ("bm25s", "faiss", "torch", "sentence_transformers", "uvicorn"):
            sys.modules[package] = None
        from agentgym_env.errors import MissingExtra
        from agentgym_servers.worlds.search.env import Search
        env = Search(questions=sys.argv[1], retriever=sys.argv[2])
        env.reset(seed=0)
        assert "Python (genus)" in env.step("<search>snakes</search>")[0]
        try:
            Search(corpus="timezones")
        except MissingExtra as error:
            assert "pip install 'agentgym-sdk[search]'" in str(error)
        else:
            raise AssertionError
    """)
    questions = write(tmp_path / "train.jsonl", [ask(0)])
    done = subprocess.run(
        [sys.executable, "-c", script, questions, index],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
