"""Dense indexes: FAISS over a small encoder that is made here, its weights at random."""

import numpy as np
import pytest

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")

from agentgym_env.errors import BadRequest
from agentgym_servers.worlds.search.retrieval.build import build_index, index
from agentgym_servers.worlds.search.retrieval.dense import DenseMaker
from agentgym_servers.worlds.search.retrieval.dense_encoder import Encoder
from agentgym_servers.worlds.search.retrieval.manifest import Graph, read_manifest
from agentgym_servers.worlds.search.retrieval.passages import Passage
from agentgym_servers.worlds.search.retrieval.retriever import open_retriever
from retrieving import contents_of, make_encoder, write_corpus, zipf_passages, zipf_queries

E5 = ("query: ", "passage: ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_encoder(tmp_path_factory.mktemp("models") / "tiny-e5-base")


@pytest.fixture(scope="module")
def passages():
    return zipf_passages(600)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, passages):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c.jsonl", passages)


@pytest.fixture(scope="module")
def flat(tmp_path_factory, folder, corpus):
    out = tmp_path_factory.mktemp("flat") / "index"
    build_index(corpus, out, DenseMaker(Encoder(str(folder)), chunk_passages=250))
    return out


def vectors(folder, texts):
    """Straight from sentence-transformers, with the prefix written out."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder)).encode(texts, normalize_embeddings=True)


def test_flat_finds_what_comparing_with_every_vector_finds(flat, folder, passages):
    queries = zipf_queries(40)
    found = open_retriever(str(flat)).search(queries, 5)
    scores = vectors(folder, [E5[0] + q for q in queries]) @ (
        vectors(folder, [E5[1] + p.contents for p in passages]).T
    )  # (queries, passages)
    for hits, row in zip(found, scores, strict=True):
        assert [h.score for h in hits] == pytest.approx(np.sort(row)[::-1][:5], abs=1e-5)
        assert [row[int(h.passage.id)] for h in hits] == pytest.approx(
            [h.score for h in hits], abs=1e-5
        )


def test_an_index_records_its_encoder_and_prefixes(flat, folder):
    manifest = read_manifest(flat)
    settings = manifest.settings
    assert (settings.query_prefix, settings.passage_prefix) == E5, "known by the encoder's name"
    assert (settings.encoder, settings.dimension, settings.normalized) == (str(folder), 32, True)
    assert len(settings.encoder_sha256) == 64
    assert set(manifest.versions) == {"faiss", "numpy", "sentence-transformers"}


def test_prefixes_are_those_asked_for_else_the_encoders_own(tmp_path):
    prompts = {"query": "query : ", "document": "passage : "}
    own = Encoder(str(make_encoder(tmp_path, prompts=prompts)))
    assert DenseMaker(own).settings.query_prefix == "query : "
    assert DenseMaker(own).settings.passage_prefix == "passage : "
    asked = DenseMaker(own, query_prefix="", passage_prefix="w1 ").settings
    assert (asked.query_prefix, asked.passage_prefix) == ("", "w1 ")


def test_equal_vectors_come_in_the_corpus_order(tmp_path, folder):
    twins = [Passage(str(i), "w5 w6" if i in (40, 3) else "w1 w2") for i in range(150)]
    corpus = write_corpus(tmp_path / "c.jsonl", twins)
    build_index(corpus, tmp_path / "i", DenseMaker(Encoder(str(folder)), query_prefix="passage: "))
    for queries in (["w5 w6"], ["w5 w6"] * 64):
        hits = open_retriever(str(tmp_path / "i")).search(queries, 5)[-1]
        assert [h.passage.id for h in hits] == ["3", "40", "0", "1", "2"]


def test_a_graph_finds_nearly_all_of_the_nearest_and_is_made_alike_twice(
    tmp_path, flat, folder, corpus
):
    for name in ("one", "two"):
        maker = DenseMaker(Encoder(str(folder)), graph=Graph(), chunk_passages=250)
        build_index(corpus, tmp_path / name, maker)
    assert contents_of(tmp_path / "one") == contents_of(tmp_path / "two")
    queries = zipf_queries(100)
    exact = open_retriever(str(flat)).search(queries, 10)
    found = open_retriever(str(tmp_path / "one")).search(queries, 10)
    shared = [
        len({h.passage.id for h in e} & {h.passage.id for h in f})
        for e, f in zip(exact, found, strict=True)
    ]
    assert sum(shared) / 1_000 >= 0.95


def test_more_hits_than_passages_are_all_of_them(tmp_path, folder):
    corpus = write_corpus(tmp_path / "c.jsonl", zipf_passages(5))
    for name, graph in (("flat", None), ("hnsw", Graph())):
        build_index(corpus, tmp_path / name, DenseMaker(Encoder(str(folder)), graph=graph))
        (hits,) = open_retriever(str(tmp_path / name)).search(["w1"], 50)
        assert len(hits) == 5


def test_a_dense_build_that_was_stopped_ends_with_the_same_bytes(tmp_path, flat, folder, corpus):
    def told(stage, done, of):
        if stage == "read" and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        maker = DenseMaker(Encoder(str(folder)), chunk_passages=250)
        build_index(corpus, tmp_path / "i", maker, told)
    build_index(corpus, tmp_path / "i", DenseMaker(Encoder(str(folder)), chunk_passages=250))
    assert contents_of(tmp_path / "i") == contents_of(flat)


def test_other_weights_than_the_indexs_are_refused(tmp_path, flat):
    other = make_encoder(tmp_path / "other", seed=1)
    with pytest.raises(BadRequest, match=r"made with other weights .* with --encoder"):
        open_retriever(str(flat), encoder=str(other))


def test_an_encoder_that_moved_is_named_when_the_index_is_opened(tmp_path, flat, folder):
    moved = make_encoder(tmp_path / "moved")
    (hits,) = open_retriever(str(flat), encoder=str(moved)).search(["w3 w4"], 3)
    assert hits == open_retriever(str(flat)).search(["w3 w4"], 3)[0]
    with pytest.raises(BadRequest, match="cannot load the encoder '/no/such'"):
        open_retriever(str(flat), encoder="/no/such")


def test_the_command_makes_a_dense_index(tmp_path, folder, capsys):
    corpus = write_corpus(tmp_path / "c.jsonl", zipf_passages(20))
    index(corpus, tmp_path / "i", "hnsw", str(folder), query_prefix="w1 ")
    assert "20 passages, hnsw" in capsys.readouterr().out
    settings = read_manifest(tmp_path / "i").settings
    assert (settings.graph, settings.query_prefix) == (Graph(), "w1 ")
