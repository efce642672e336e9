"""The generated world: its file and its generator, what its questions promise, the experts."""

from __future__ import annotations

import hashlib
import lzma
import subprocess
import sys
from functools import cache
from importlib.resources import files
from statistics import mean

import pytest

from agentgym_env.errors import BadRequest
from agentgym_servers.worlds.search import corpora
from agentgym_servers.worlds.search.answers import normal
from agentgym_servers.worlds.search.corpora import SearchWorld, encoded, open_world
from agentgym_servers.worlds.search.env import Search as SearchEnv
from benchmarks.search_recall import Search, guess, one_search_recall, play, recall, right, searcher
from tools.generated_world import timezones
from tools.generated_world.__main__ import main, make
from tools.generated_world.facts import WorldSpec, unfold
from tools.generated_world.generate import LANGUAGE, generate, solver
from tools.generated_world.grammar import Reading, Understanding, words_of
from tools.generated_world.language import answer_forms, known
from tools.generated_world.timezones import read_table

SMALL = "passages=1500&questions=400"
TINY = "passages=500&questions=40"
SHIPPED = ("synthetic:0", "timezones")
EVERY = pytest.mark.parametrize("every", [20, pytest.param(3, marks=pytest.mark.slow)])
"""One in twenty by default, and one in three in the full suite."""
KINDS_BY_HOPS = {
    1: {"lookup", "count"},
    2: {"bridge", "count", "intersection"},
    3: {"bridge", "comparison", "count", "intersection"},
    4: {"bridge", "comparison", "count", "intersection"},
}


@cache
def world_of(corpus: str) -> SearchWorld:
    """The world that comes with the package, or one that is made now."""
    return open_world(corpus) if corpus in SHIPPED else generate(WorldSpec.parse(corpus))


@cache
def searched(corpus: str) -> tuple[SearchWorld, Search]:
    world = world_of(corpus)
    return world, searcher(world.passages)


def read_through(corpus: str, question, search: Search):
    """Play the expert that knows no fact and answers from what it reads."""
    expert = timezones.solver if corpus == "timezones" else solver
    return play(expert(question.text), search)


def every_question(world: SearchWorld):
    return [question for split in ("train", "test") for question in world.questions[split]]


def digest(world: SearchWorld) -> str:
    lines = [passage.contents for passage in world.passages]
    lines += [repr((q.id, q.text, q.answers, q.support)) for q in every_question(world)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def test_the_default_world_has_10000_passages_and_6000_questions_of_every_kind():
    world = open_world("synthetic:0")
    assert len({passage.id for passage in world.passages}) == 10_000
    assert {split: len(qs) for split, qs in world.questions.items()} == {"train": 5400, "test": 600}
    for questions in world.questions.values():
        for hops, kinds in KINDS_BY_HOPS.items():
            own = [question for question in questions if question.hops == hops]
            assert {question.kind for question in own} == kinds
            assert len(own) >= 0.15 * len(questions)
    texts = [question.text for question in every_question(world)]
    assert len(set(texts)) == len(texts)


def test_passages_are_forty_to_a_hundred_and_fifty_words_under_a_title_of_their_own():
    world = open_world("synthetic:0")
    lengths = [len(passage.text.split()) for passage in world.passages]
    assert min(lengths) >= 40
    assert max(lengths) <= 150
    assert len({passage.title for passage in world.passages}) == len(world.passages)


def test_no_title_stands_inside_another():
    titles = {passage.title for passage in open_world("synthetic:0").passages}
    for title in titles:
        words = title.split()
        parts = {
            " ".join(words[start:end])
            for start in range(len(words))
            for end in range(start + 1, len(words) + 1)
        }
        assert parts & titles == {title}


def test_no_invented_name_is_a_real_place_of_the_time_zone_table():
    real = {row.country for row in read_table()}
    real |= {row.zone.rpartition("/")[2].replace("_", " ") for row in read_table()}
    words = {word for p in open_world("synthetic:0").passages for word in p.title.split()}
    assert not words & real


def test_the_world_of_seed_0_is_the_one_that_was_released():
    assert digest(open_world("synthetic:0")) == "3394ac19832bd15f"


def test_a_world_is_the_same_in_every_process_and_under_every_hash_seed():
    code = (
        "from tools.generated_world.facts import WorldSpec;"
        "from tools.generated_world.generate import generate;"
        f"world = generate(WorldSpec.parse('synthetic:3?{TINY}'));"
        "print(repr((world.passages, world.questions)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "4711", "PYTHONPATH": ":".join(path or "." for path in sys.path)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    world = world_of(f"synthetic:3?{TINY}")
    assert printed == repr((world.passages, world.questions)) + "\n"


def test_another_seed_is_another_world():
    one, other = (world_of(f"synthetic:{seed}?{TINY}") for seed in (1, 3))
    shared = {p.title for p in one.passages} & {p.title for p in other.passages}
    # Two worlds coin words from the same syllables, and may chance upon the same name.
    assert len(shared) < 0.01 * len(one.passages)


@pytest.mark.parametrize("corpus", ["synthetic:0", f"synthetic:1?{SMALL}", "timezones"])
def test_train_and_test_share_no_entity_and_no_supporting_passage(corpus):
    world = world_of(corpus)
    entities, support = [
        {name for q in world.questions["train"] for name in getattr(q, field)}
        & {name for q in world.questions["test"] for name in getattr(q, field)}
        for field in ("entities", "support")
    ]
    assert not entities
    assert not support


@cache
def default_facts():
    return unfold(WorldSpec())


@EVERY
def test_every_fact_is_told_by_exactly_the_passages_that_the_fact_base_names(every):
    facts, reading = default_facts(), Reading(LANGUAGE)
    slots = [*LANGUAGE.by_name, *LANGUAGE.by_inverse]
    for passage in open_world("synthetic:0").passages[:: 2 * every]:
        told = {slot: reading.told(passage.text, slot) for slot in slots}
        told = {slot: value for slot, value in told.items() if value is not None}
        assert told == facts.entities[passage.title].told


@EVERY
def test_every_question_has_one_answer_by_the_facts_and_says_which_facts_it_means(every):
    world, facts = open_world("synthetic:0"), default_facts()
    ids = {passage.title: passage.id for passage in world.passages}
    understanding = Understanding(LANGUAGE)
    for question in every_question(world)[::every]:
        plan = understanding.plan(question.text)
        knowledge = known(plan, facts) if plan else None
        assert knowledge is not None, question.text
        assert answer_forms(knowledge.answer) == question.answers
        assert [ids[owner] for owner in knowledge.needed] == question.support
        assert question.hops == len(set(question.support)) <= len(knowledge.subjects)


def test_a_comparison_of_equals_has_no_answer():
    facts = unfold(WorldSpec.parse(f"synthetic:1?{SMALL}"))
    understanding = Understanding(LANGUAGE)
    others = [e.name for e in facts.entities.values() if e.kind == "building"]
    heights = {facts.get(name, "height")[0]: name for name in others}
    twice = next((n, heights[facts.get(n, "height")[0]]) for n in others
                 if heights[facts.get(n, "height")[0]] != n)  # fmt: skip
    equal = f"Compare the {twice[0]} with the {twice[1]}: where can one see the taller of the two?"
    assert known(understanding.plan(equal), facts) is None


@pytest.mark.parametrize("corpus", ["synthetic:0", f"synthetic:1?{SMALL}", "timezones"])
@pytest.mark.parametrize("by", ["template", "relation"])
def test_guessing_the_most_frequent_answer_stays_under_a_tenth(corpus, by):
    world = world_of(corpus)
    hits = guess(world.questions["test"], world.questions["train"], by)
    every = [hit for group in hits.values() for hit in group]
    assert len(every) == len(world.questions["test"])
    assert mean(every) < 0.10


@pytest.mark.parametrize("corpus", ["synthetic:0", "timezones"])
def test_no_question_contains_its_answer(corpus):
    for question in every_question(world_of(corpus)):
        for answer in question.answers:
            assert f" {normal(answer)} " not in f" {normal(question.text)} ", question.text


@EVERY
@pytest.mark.parametrize(
    "corpus",
    [
        "synthetic:0", f"synthetic:1?{SMALL}&distractors=5", f"synthetic:1?{SMALL}&paraphrase=1",
        "timezones",
    ],
)  # fmt: skip
def test_the_expert_solves_questions_of_both_splits_by_searching(corpus, every):
    world, search = searched(corpus)
    for question in every_question(world)[::every]:
        answer, brought = read_through(corpus, question, search)
        assert right(question, answer), (question.text, answer)
        assert len(brought) >= question.hops
        assert recall(question, [p for passages in brought for p in passages]) == 1.0


def test_the_expert_answers_only_from_what_it_reads():
    corpus = f"synthetic:1?{SMALL}"
    world, search = searched(corpus)
    question = next(q for q in world.questions["test"] if q.category == "bridge-2")
    assert right(question, read_through(corpus, question, search)[0])
    assert read_through(corpus, question, lambda query: [])[0] == ""


def test_the_expert_gives_up_on_a_question_it_does_not_understand():
    with pytest.raises(StopIteration) as end:
        next(solver("What is love?"))
    assert end.value.value == ""


@EVERY
@pytest.mark.parametrize("corpus", ["synthetic:0", f"synthetic:1?{SMALL}", "timezones"])
def test_one_search_for_the_question_never_brings_the_passage_that_holds_the_answer(corpus, every):
    world, search = searched(corpus)
    titles = {passage.title for passage in world.passages}
    for question in every_question(world)[::every]:
        if question.hops == 1:
            continue
        found = search(question.text)
        assert question.support[-1] not in {passage.id for passage in found}, question.text
        if question.kind in ("bridge", "comparison") and question.answers[0] in titles:
            assert not [p.id for p in found if question.answers[0] in p.contents], question.text


@pytest.mark.slow
def test_more_twins_make_one_search_find_less():
    few, many = (
        searched(f"synthetic:5?passages=3000&questions=900&distractors={d}") for d in (0, 5)
    )
    without = one_search_recall(few[0].questions["train"], few[1])
    drowned = one_search_recall(many[0].questions["train"], many[1])
    assert mean(drowned.values()) < mean(without.values()) - 0.01


def test_paraphrase_takes_the_words_of_questions_away_from_passages():
    overlaps = []
    for paraphrase in (0, 0.5, 1):
        world = world_of(f"synthetic:1?{SMALL}&paraphrase={paraphrase}")
        held = {passage.id: set(words_of(passage.contents)) for passage in world.passages}
        shares = []
        for question in world.questions["train"]:
            plain = {word for word in words_of(question.text) if word in question.text.split()}
            needed = set().union(*(held[id] for id in question.support))
            shares.append(len(plain & needed) / max(1, len(plain)))
        overlaps.append(mean(shares))
    assert overlaps[0] > overlaps[1] + 0.05 > overlaps[2] + 0.1


def test_a_world_too_small_for_its_questions_says_so():
    with pytest.raises(BadRequest, match=r"400 passages hold .* ask for fewer questions"):
        generate(WorldSpec(passages=400, questions=5000, hops=(1,)))


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("synthetic", WorldSpec()),
        ("synthetic:7", WorldSpec(seed=7)),
        ("synthetic:0?hops=3-4", WorldSpec(hops=(3, 4))),
        ("synthetic:1?hops=1,3&paraphrase=1", WorldSpec(seed=1, hops=(1, 3), paraphrase=1.0)),
        ("synthetic:2?passages=500&questions=50&distractors=0",
         WorldSpec(2, passages=500, questions=50, distractors=0)),
    ],
)  # fmt: skip
def test_a_spec_reads_and_writes_itself(text, spec):
    assert WorldSpec.parse(text) == spec
    assert WorldSpec.parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("synthetic:x", "named like"),
        ("synthetic:1?size=3", "no parameter 'size'; there are passages"),
        ("synthetic:1?hops=many", "hops='many' is not a number"),
        ("synthetic:1?hops=5", "among 1 to 4"),
        ("synthetic:1?hops=3,2", "rising"),
        ("synthetic:1?hops=4-3", "among 1 to 4"),
        ("synthetic:1?passages=10", "400 passages at least, got 10"),
        ("synthetic:1?questions=1", "10 questions at least, got 1"),
        ("synthetic:1?distractors=9", "0 to 5"),
        ("synthetic:1?paraphrase=2", "from 0 to 1"),
        ("synthetic:1?paraphrase=nan", "from 0 to 1"),
        ("synthetic:1?hops=2&hops=3", "given once"),
        ("synthetic:1?hops", "given once, as NAME=VALUE"),
    ],
)
def test_a_world_that_cannot_be_is_refused_with_a_reason(text, complaint):
    with pytest.raises(BadRequest, match=complaint):
        WorldSpec.parse(text)


@pytest.mark.slow
@pytest.mark.parametrize("corpus", SHIPPED)
def test_the_generator_writes_the_lines_of_the_file_in_the_package(corpus):
    assert encoded(make(corpus)) == encoded(open_world(corpus)) == shipped_lines(corpus)


def shipped_lines(corpus: str) -> bytes:
    file = files("agentgym_servers.worlds.search").joinpath("data", corpora.SHIPPED[corpus])
    return lzma.decompress(file.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("corpus", SHIPPED)
def test_the_expert_in_the_file_makes_the_searches_of_the_one_that_reads(corpus):
    world, search = searched(corpus)
    for question in world.questions["test"]:
        told = play(corpora.solve(question), search)
        assert told == read_through(corpus, question, search), question.text


def test_a_world_of_another_seed_and_of_chosen_hops_is_made_as_a_file_and_played_from_it(
    tmp_path, capsys, monkeypatch
):
    line = f"synthetic:7?{TINY}&hops=3-4"
    monkeypatch.setattr(sys, "argv", ["generated_world", line, "--out", str(tmp_path / "made")])
    main()
    (path,) = capsys.readouterr().out.split()
    env = SearchEnv(corpus=path)
    assert {split: len(env.tasks.split(split)) for split in ("train", "test")} == {
        "train": 36, "test": 4,
    }  # fmt: skip
    assert {question.hops for question in every_question(open_world(path))} == {3, 4}
    for task in env.tasks.split("test"):
        env.reset(seed=0, options={"task": task})
        reward = 0.0
        while reward == 0.0 and (action := env.expert_action()) is not None:
            _, reward, *_ = env.step(action)
        assert reward == 1.0, task


def test_the_default_world_needs_no_seed():
    assert open_world("synthetic").questions == open_world("synthetic:0").questions


@pytest.mark.parametrize("corpus", ["synthetic:7", "synthetic:0?hops=3-4", "wikipedia"])
def test_a_corpus_that_does_not_come_with_the_package_is_an_error_with_the_remedy(corpus):
    with pytest.raises(
        BadRequest, match=r"there are synthetic:0, timezones.*tools\.generated_world"
    ):
        open_world(corpus)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot read the corpus"),
        (b"", "is not a corpus with questions"),
        (b"[]", "is not a corpus with questions"),
        (b'{"name": "x", "passages": 2, "questions": {}}\n{"id": "1", "contents": "a"}',
         "number of lines differs"),
        (b'{"name": "x", "passages": 1, "questions": {}}\n{"id": "1"}', "is not a corpus"),
        (b'{"name": "\xff"}', "is not a corpus with questions"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_corpus_is_an_error_with_its_name(tmp_path, content, complaint):
    for path in (tmp_path / "corpus.jsonl", tmp_path / "corpus.jsonl.xz"):
        if content is not None:
            path.write_bytes(lzma.compress(content) if path.suffix == ".xz" else content)
        with pytest.raises(BadRequest, match=complaint) as raised:
            open_world(str(path))
        assert str(path) in str(raised.value)


def test_a_truncated_file_is_an_error(tmp_path):
    path = tmp_path / "corpus.jsonl.xz"
    path.write_bytes(lzma.compress(b"x" * 10_000)[:40])
    with pytest.raises(BadRequest, match="cannot read the corpus"):
        open_world(str(path))
