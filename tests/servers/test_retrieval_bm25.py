"""BM25: bm25s' own scores to the bit, and an order that does not depend on chance."""

import math
from concurrent.futures import ThreadPoolExecutor

import bm25s
import numpy as np
import pytest

from agentgym_env.errors import BadRequest
from agentgym_servers.worlds.search.retrieval.passages import Passage
from agentgym_servers.worlds.search.retrieval.ranking import best, score_space
from agentgym_servers.worlds.search.retrieval.remote import MAX_QUERY_CHARS
from agentgym_servers.worlds.search.retrieval.retriever import open_retriever
from retrieving import FACTS, bm25_index, zipf_passages, zipf_queries

ODD = [
    Passage("empty", ""),
    Passage("stopped", "the of and"),
    Passage("prose", "Zürich's naïve CAFÉ — 東京 tower, the don't-care x y 42 42 42"),
]


@pytest.fixture(scope="module")
def passages():
    return [*zipf_passages(3_000, words=60), *ODD]


@pytest.fixture(scope="module")
def index(tmp_path_factory, passages):
    return bm25_index(tmp_path_factory.mktemp("bm25"), passages, chunk_passages=700)


def split(texts):
    return bm25s.tokenize(texts, return_ids=False, show_progress=False)


def test_the_files_are_those_that_bm25s_itself_makes(index, passages, tmp_path):
    theirs = bm25s.BM25()
    tokens = bm25s.tokenize([p.contents for p in passages], show_progress=False)
    theirs.index(tokens, show_progress=False)
    ours = bm25s.BM25.load(index, mmap=True)
    del theirs.vocab_dict[""]
    assert ours.vocab_dict == theirs.vocab_dict
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(ours.scores[name], theirs.scores[name])
        assert ours.scores[name].dtype == theirs.scores[name].dtype
    assert ours.scores["num_docs"] == len(passages)


def test_k1_and_b_reach_the_scores(tmp_path, passages):
    theirs = bm25s.BM25(k1=0.9, b=0.4)
    theirs.index(split([p.contents for p in passages]), show_progress=False)
    ours = bm25s.BM25.load(bm25_index(tmp_path, passages, k1=0.9, b=0.4))
    words = split("w3 w7 café")[0]
    np.testing.assert_array_equal(ours.get_scores(words), theirs.get_scores(words))


def test_hits_and_scores_are_bm25s_own(index, passages):
    theirs = bm25s.BM25.load(index)
    queries = zipf_queries(300)
    for query, hits in zip(queries, open_retriever(str(index)).search(queries, 7), strict=True):
        scores = theirs.get_scores(split(query)[0])
        order = sorted(range(len(scores)), key=lambda n: (-scores[n], n))[:7]
        assert [hit.passage for hit in hits] == [passages[n] for n in order]
        assert [hit.score for hit in hits] == [scores[n] for n in order]


def test_a_score_is_what_the_formula_gives_by_hand(tmp_path):
    texts = ["red red green", "green blue", "blue blue blue white"]
    index = bm25_index(tmp_path, [Passage(str(i), text) for i, text in enumerate(texts)])
    ((hit,),) = open_retriever(str(index)).search(["red"], 3)
    rarity = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))  # in one of three passages
    expected = rarity * 2 / (2 + 1.5 * (0.25 + 0.75 * 3 / 3))  # twice, in one of mean length 3
    assert (hit.passage.id, hit.score) == ("0", pytest.approx(expected))


def test_equal_passages_come_in_the_corpus_order(tmp_path):
    twins = [Passage(str(i), f"{'rare' if i in (7, 900) else 'same'} text") for i in range(1_000)]
    retriever = open_retriever(str(bm25_index(tmp_path, twins)))
    same, rare = retriever.search(["same", "rare text"], 5)
    assert [hit.passage.id for hit in same] == ["0", "1", "2", "3", "4"]
    assert [hit.passage.id for hit in rare] == ["7", "900", "0", "1", "2"]


def test_the_best_scores_are_those_that_a_full_sort_finds():
    rng = np.random.default_rng(0)
    for size in (1, 5, 64, 65, 1_000, 5_000):
        for levels in (1, 3, 100_000):
            scores = score_space(size)
            scores[:size] = rng.integers(-levels, levels, size)
            for k in (1, 3, 70, 10_000):
                found = sorted(
                    (n for n in range(size) if scores[n] > 0), key=lambda n: (-scores[n], n)
                )[:k]
                assert best(scores, k).numbers.tolist() == found


def test_a_query_of_no_known_word_finds_nothing(index):
    assert (
        open_retriever(str(index)).search(["", "the", "unheard-of words", "\ud800"], 3) == [[]] * 4
    )
    assert open_retriever(str(index)).search([], 3) == []


def test_more_hits_than_there_are_passages_are_those_that_match(tmp_path):
    (hits,) = open_retriever(str(bm25_index(tmp_path, FACTS))).search(["python"], 100)
    assert [hit.passage.id for hit in hits] == ["py", "snake"]
    with pytest.raises(BadRequest, match="at least 1 passage, got k 0"):
        open_retriever(str(tmp_path / "index")).search(["python"], 0)


def test_a_query_is_read_up_to_a_limit(index):
    retriever = open_retriever(str(index))
    long = "unknown " * (MAX_QUERY_CHARS // 8)
    assert retriever.search([long + "w1"], 3) == [[]]
    assert len(retriever.search([long[8:] + "w1"], 3)[0]) == 3


def test_threads_that_search_side_by_side_find_what_one_finds(index):
    retriever = open_retriever(str(index))
    queries = zipf_queries(400)
    alone = retriever.search(queries, 5)
    with ThreadPoolExecutor(8) as pool:
        parts = pool.map(lambda a: retriever.search(queries[a : a + 10], 5), range(0, 400, 10))
    assert [hits for part in parts for hits in part] == alone
