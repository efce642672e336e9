"""The questions and the retriever of a search world, made once and shared."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec

from agentgym_env.errors import BadRequest
from agentgym_servers.worlds.search.corpora import open_world
from agentgym_servers.worlds.search.retrieval.build import build_index
from agentgym_servers.worlds.search.retrieval.passages import Passage, Retriever
from agentgym_servers.worlds.search.retrieval.retriever import IndexRetriever, open_retriever
from agentgym_servers.worlds.search.tasks import QuestionSet, read_questions, world_questions

REMOTE_TIMEOUT_S: Final = 10.0
"""How long a retriever behind HTTP may take for one search, repeats included."""


@dataclass(frozen=True, slots=True)
class SearchSetup:
    """The questions, and what finds passages."""

    questions: QuestionSet
    retriever: Retriever


@cache
def search_setup(corpus: str, retriever: str | None, questions: str | None) -> SearchSetup:
    """The parts of these settings, made once; several environments share them."""
    if questions is not None:
        if retriever is None:
            raise BadRequest(
                f"the questions {questions} come without passages; name a retriever for them: the "
                "folder of an index, or an http address"
            )
        return SearchSetup(_file_questions(questions), _named_retriever(retriever))
    finder = _corpus_retriever(corpus) if retriever is None else _named_retriever(retriever)
    return SearchSetup(_corpus_questions(corpus), finder)


def embedded_index(passages: Sequence[Passage]) -> Retriever:
    """A BM25 index of passages for this process alone."""
    # Only making an index needs bm25s; other retrievers do not.
    maker = import_module("agentgym_servers.worlds.search.retrieval.bm25_build").Bm25Maker()
    # The index stays mapped into memory when its files are deleted; a system that does not allow
    # that keeps the files.
    with tempfile.TemporaryDirectory(prefix="agentgym-", ignore_cleanup_errors=True) as folder:
        corpus = Path(folder) / "corpus.jsonl"
        corpus.write_bytes(b"".join(msgspec.json.encode(p) + b"\n" for p in passages))
        build_index(corpus, Path(folder) / "index", maker)
        return IndexRetriever(Path(folder) / "index")


@cache
def _corpus_questions(corpus: str) -> QuestionSet:
    return world_questions(open_world(corpus))


@cache
def _file_questions(questions: str) -> QuestionSet:
    return read_questions(questions)


@cache
def _named_retriever(where: str) -> Retriever:
    return open_retriever(where, timeout_s=REMOTE_TIMEOUT_S)


@cache
def _corpus_retriever(corpus: str) -> Retriever:
    return embedded_index(open_world(corpus).passages)
