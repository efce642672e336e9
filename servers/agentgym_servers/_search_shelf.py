"""What all search environments of a process share: questions, a retriever, the expert's mind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec

from agentgym_env.errors import BadRequest
from agentgym_servers._search_tasks import QuestionSet, read_questions, world_questions
from agentgym_servers.corpora import open_world
from agentgym_servers.generated_world.solver import Solving
from agentgym_servers.retrieval.build import build_index
from agentgym_servers.retrieval.passages import Passage, Retriever
from agentgym_servers.retrieval.retriever import IndexRetriever, open_retriever

REMOTE_TIMEOUT_S: Final = 10.0
"""How long a retriever behind HTTP may take for one search, repeats included."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """What can be asked, and what finds passages."""

    questions: QuestionSet
    retriever: Retriever
    solver: Callable[[str], Solving] | None
    """The expert, where the questions are a world's own."""


@cache
def shelf(corpus: str, retriever: str | None, questions: str | None) -> Shelf:
    """The shelf of these settings, made once; the same parts are shared by several shelves."""
    if questions is not None:
        if retriever is None:
            raise BadRequest(
                f"the questions {questions} come without passages; name a retriever for them: the "
                "folder of an index, or an http address"
            )
        return Shelf(_read(questions), _opened(retriever), None)
    world = open_world(corpus)
    finder = _embedded(corpus) if retriever is None else _opened(retriever)
    return Shelf(_asked(corpus), finder, world.solver)


@cache
def _asked(corpus: str) -> QuestionSet:
    return world_questions(open_world(corpus))


@cache
def _read(questions: str) -> QuestionSet:
    return read_questions(questions)


@cache
def _opened(where: str) -> Retriever:
    return open_retriever(where, timeout_s=REMOTE_TIMEOUT_S)


@cache
def _embedded(corpus: str) -> Retriever:
    return embedded_index(open_world(corpus).passages)


def embedded_index(passages: Sequence[Passage]) -> Retriever:
    """A BM25 index of passages for this process alone."""
    # bm25s is needed for making an index only: a retriever of one's own does without.
    maker = import_module("agentgym_servers.retrieval.bm25_build").Bm25Maker()
    # The index stays mapped into memory when its files are gone; where a system does not allow
    # that, they are left to it.
    with tempfile.TemporaryDirectory(prefix="agentgym-", ignore_cleanup_errors=True) as folder:
        corpus = Path(folder) / "corpus.jsonl"
        corpus.write_bytes(b"".join(msgspec.json.encode(p) + b"\n" for p in passages))
        build_index(corpus, Path(folder) / "index", maker)
        return IndexRetriever(Path(folder) / "index")
