"""Opens a retriever: an index on this machine, or a server of Search-R1's route."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from agentgym_servers.worlds.search.retrieval.bm25 import Bm25Ranker
from agentgym_servers.worlds.search.retrieval.manifest import (
    Bm25Settings,
    DenseSettings,
    Manifest,
    read_manifest,
)
from agentgym_servers.worlds.search.retrieval.passages import Hit, PassageStore, Retriever
from agentgym_servers.worlds.search.retrieval.ranking import Ranker
from agentgym_servers.worlds.search.retrieval.remote import RemoteRetriever, checked_queries


class IndexRetriever:
    """Searches an index in this process; safe to use from several threads."""

    def __init__(self, folder: Path, *, encoder: str | None = None) -> None:
        self.manifest: Manifest = read_manifest(folder)
        self._passages = PassageStore(folder)
        self._ranker = _ranker(folder, self.manifest, encoder)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits for each query, best first, equal ones in the corpus' order."""
        checked = checked_queries(queries, k)
        rankings = self._ranker.rank(checked, k) if checked else []
        return [
            [
                Hit(self._passages[number], score)
                for number, score in zip(r.numbers.tolist(), r.scores.tolist(), strict=True)
            ]
            for r in rankings
        ]


def open_retriever(where: str, *, encoder: str | None = None, timeout_s: float = 30.0) -> Retriever:
    """The retriever of an index's folder, or of a server's http address.

    `encoder` is where a dense index finds its encoder, if not where it was made; `timeout_s` is
    how long a server may take. Raises `BadRequest` where there is no whole index, and
    `MissingExtra` for what it needs.
    """
    if where.startswith(("http://", "https://")):
        return RemoteRetriever(where, timeout_s=timeout_s)
    return IndexRetriever(Path(where), encoder=encoder)


def _ranker(folder: Path, manifest: Manifest, encoder: str | None) -> Ranker:
    settings = manifest.settings
    if isinstance(settings, Bm25Settings):
        return Bm25Ranker(folder, settings, manifest.passages)
    return _dense_ranker(folder, settings, encoder)


def _dense_ranker(folder: Path, settings: DenseSettings, encoder: str | None) -> Ranker:
    # FAISS and an encoder are loaded only for an index that needs them.
    dense = import_module("agentgym_servers.worlds.search.retrieval.dense")
    dense_encoder = import_module("agentgym_servers.worlds.search.retrieval.dense_encoder")
    ranker: Ranker = dense.DenseRanker(
        folder, settings, dense_encoder.Encoder(encoder or settings.encoder)
    )
    return ranker
