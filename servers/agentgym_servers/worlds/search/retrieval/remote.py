"""A retriever behind HTTP: `agentgym serve-retriever`, or Search-R1's own server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from agentgym_env.client.transports import Answer, Call, HttpTransport
from agentgym_env.errors import BadRequest, EnvironmentLost
from agentgym_servers.worlds.search.retrieval.passages import Hit, Passage, RetrieverFailed

MAX_QUERY_CHARS: Final = 10_000


def checked_queries(queries: Sequence[str], k: int) -> list[str]:
    """Each query, cut to `MAX_QUERY_CHARS` and fit to be encoded; raises where `k` is below 1."""
    if k < 1:
        raise BadRequest(f"a search is for at least 1 passage, got k {k}")
    return [q[:MAX_QUERY_CHARS].encode(errors="replace").decode() for q in queries]


PATH: Final = "/retrieve"


class Query(Struct):
    """The request: passages for each query."""

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


_SHOWN_CHARS = 200

_FORMAT: Final = (
    f"{PATH} there must answer as Search-R1's retriever does, "
    '{"result": [[{"document": {"id": "7", "contents": "..."}, "score": 0.8}]]}'
)

_decode = msgspec.json.Decoder(ScoredReply).decode


class RemoteRetriever:
    """Asks a server; what is wrong with the server now is `RetrieverFailed`.

    An answer in another format than Search-R1's is wrong for ever, and is `BadRequest`.

    `address` may end in `/retrieve`, as Search-R1's configs write it. A call is repeated on a
    connection error and on 502, 503 and 504; `timeout_s` bounds it, its repeats included.
    """

    def __init__(self, address: str, *, timeout_s: float = 30.0, retries: int = 3) -> None:
        base = address.rstrip("/").removesuffix(PATH)
        self._http = HttpTransport(base, timeout_s=timeout_s, retries=retries)
        self.address = self._http.address

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits for each query, in the server's order."""
        checked = checked_queries(queries, k)
        if not checked:
            return []
        body = msgspec.json.encode(Query(checked, k, return_scores=True))
        try:
            answer = self._http.send(Call(PATH, body))
        except EnvironmentLost as error:
            raise RetrieverFailed(f"the retriever is lost: {error}") from error
        lists = self._read(answer)
        if len(lists) != len(queries):
            raise BadRequest(
                f"the retriever {self.address} answered with {len(lists)} lists as its `result` "
                f"for {len(queries)} queries; {_FORMAT}"
            )
        return [[_hit(found) for found in documents[:k]] for documents in lists]

    def close(self) -> None:
        """Release connections."""
        self._http.close()

    def _read(self, answer: Answer) -> list[list[ScoredDocument]]:
        if answer.status != 200:
            shown = answer.body[:_SHOWN_CHARS].decode(errors="replace")
            raise RetrieverFailed(
                f"the retriever {self.address} answered with status {answer.status}: {shown}"
            )
        try:
            return _decode(answer.body).result
        except msgspec.ValidationError as error:
            # It answers, and will answer like this for ever.
            raise BadRequest(
                f"the retriever {self.address} answered in another format: "
                f"{str(error)[:_SHOWN_CHARS]}; {_FORMAT}"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RetrieverFailed(
                f"the retriever {self.address} answered nonsense: {str(error)[:_SHOWN_CHARS]}; "
                f"check that {PATH} there is Search-R1's route"
            ) from error


def _hit(found: ScoredDocument) -> Hit:
    return Hit(Passage(str(found.document.id), found.document.contents), found.score)
