"""The messages of Search-R1's route, `POST /retrieve`, as both ends read and write them."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

PATH: Final = "/retrieve"


class Query(Struct):
    """What is asked: passages for each query."""

    queries: list[str]
    topk: Annotated[int, Meta(ge=1)] | None = None
    return_scores: bool = False


class Document(Struct, kw_only=True):
    """A passage. Search-R1's own BM25 server gives no id."""

    id: str | int = ""
    contents: str


class ScoredDocument(Struct):
    """A passage that was found, and how well it fits."""

    document: Document
    score: float


class ScoredReply(Struct):
    """The answer with `return_scores`: for each query its passages, best first."""

    result: list[list[ScoredDocument]]


class Reply(Struct):
    """The answer without scores."""

    result: list[list[Document]]
