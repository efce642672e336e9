"""A sentence-transformers encoder as its own config describes it: pooling, prompts, similarity."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_servers.worlds.search.retrieval.manifest import DenseSettings, Graph

try:
    import sentence_transformers
except ModuleNotFoundError as error:
    raise MissingExtra(
        "an encoder needs sentence-transformers: pip install 'agentgym-sdk[search-dense]'"
    ) from error

_E5_PREFIXES = ("query: ", "passage: ")
_BATCH = 64


class Encoder:
    """Turns texts into vectors; safe to call from several threads, one at a time works."""

    versions: Final = {"sentence-transformers": str(sentence_transformers.__version__)}

    def __init__(self, name: str) -> None:
        self.name = str(Path(name).resolve()) if Path(name).is_dir() else name
        try:
            self._model = sentence_transformers.SentenceTransformer(
                self.name, trust_remote_code=False
            )
        except (OSError, ValueError) as error:
            raise BadRequest(
                f"cannot load the encoder {name!r}: {str(error).splitlines()[0]}; "
                "give a name on the Hugging Face Hub, or the folder of a model"
            ) from error
        # Tokenizers keep their padding and truncation as state.
        self._lock = threading.Lock()

    def settings(
        self, query_prefix: str | None, passage_prefix: str | None, graph: Graph | None
    ) -> DenseSettings:
        """What an index of this encoder's vectors records; None takes the encoder's own prefix."""
        similarity = self._model.similarity_fn_name
        if similarity not in ("cosine", "dot"):
            raise BadRequest(
                f"the encoder {self.name!r} compares by {similarity}, and an index by cosine or "
                "dot; choose another encoder"
            )
        own = self._own_prefixes()
        return DenseSettings(
            encoder=self.name,
            encoder_sha256=self._sha256(),
            dimension=int(self._model.get_embedding_dimension() or 0),
            max_tokens=int(self._model.max_seq_length or 0),
            query_prefix=own[0] if query_prefix is None else query_prefix,
            passage_prefix=own[1] if passage_prefix is None else passage_prefix,
            normalized=similarity == "cosine",
            graph=graph,
        )

    def check(self, settings: DenseSettings) -> None:
        """Raise `BadRequest` unless an index was made with these very weights."""
        if self._sha256() != settings.encoder_sha256:
            raise BadRequest(
                f"the index was made with other weights than those of {self.name!r}; give the "
                f"right encoder ({settings.encoder} then) with --encoder, or make the index again"
            )

    def encode(self, texts: Sequence[str], prefix: str, *, normalized: bool) -> NDArray[np.float32]:
        """A vector for each text, behind `prefix`; equal texts have equal ones, to the last bit."""
        # A text's place in its batch rounds it otherwise, and the members of a group ask alike.
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        with self._lock:
            vectors = self._model.encode(
                list(places), prompt=prefix, batch_size=_BATCH, show_progress_bar=False,
                convert_to_numpy=True, normalize_embeddings=normalized,
            )  # fmt: skip
        spread = [places[text] for text in texts]
        return np.ascontiguousarray(vectors[spread], np.float32)  # (N, dimension)

    def _own_prefixes(self) -> tuple[str, str]:
        prompts = {name: prompt for name, prompt in self._model.prompts.items() if prompt}
        passage = next((prompts[n] for n in ("document", "passage") if n in prompts), "")
        if prompts:
            return prompts.get("query", ""), passage
        # E5's own config does not contain the prefixes that its card requires.
        words = Path(self.name).name.lower().replace("_", "-").split("-")
        return _E5_PREFIXES if "e5" in words and "instruct" not in words else ("", "")

    def _sha256(self) -> str:
        digest = hashlib.sha256()
        for name, weights in sorted(self._model.state_dict().items()):
            digest.update(f"{name} {tuple(weights.shape)}".encode())
            digest.update(weights.detach().float().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()
