"""A corpus on disk: passages, their store and ids, and the manifest of an index."""

from __future__ import annotations

import gzip
import hashlib
import mmap
import os
import shutil
import tokenize
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentgym_env.errors import AgentGymError, BadRequest


def mapped(path: Path) -> NDArray[Any]:
    """A file's array, read where it is looked at."""
    # As a plain array: numpy's own class for maps makes every slice slow.
    return np.asarray(loaded(path, mmap_mode="r"))


def loaded(path: Path, mmap_mode: Literal["r"] | None = None) -> NDArray[Any]:
    """A file's array; raises `BadRequest` where it is none."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode=mmap_mode)
    except (OSError, ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:
        raise damaged(path, str(error)) from error
    return array


def damaged(path: Path, why: str) -> BadRequest:
    """The error for a file of an index that cannot be what was written."""
    return BadRequest(
        f"{path} is damaged: {why}; copy the index again, or make it again in another folder"
    )


def new_map(path: Path, dtype: type[np.generic], *shape: int) -> NDArray[Any]:
    """A new file's array; what is written to it goes to the file."""
    made = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)  # type: ignore[no-untyped-call]
    return np.asarray(made)


class RetrieverFailed(AgentGymError):
    """A search has no answer: the retriever is gone, hangs, or answers nonsense."""


class Passage(msgspec.Struct, frozen=True):
    """A passage of Search-R1's form: `contents` is a quoted title, a newline and the text."""

    id: str
    contents: str

    @property
    def title(self) -> str:
        """The first line, without its quotation marks."""
        return self.contents.partition("\n")[0].strip().strip('"')

    @property
    def text(self) -> str:
        """Everything after the first line."""
        return self.contents.partition("\n")[2]


class Hit(msgspec.Struct, frozen=True):
    """A passage that was found, and how well it fits; scores compare within one answer only."""

    passage: Passage
    score: float


class Retriever(Protocol):
    """Finds the passages nearest to each query; knows nothing about questions and rewards."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits for each query, best first, in the queries' order.

        Raises `RetrieverFailed` when there is no answer.
        """
        ...


_BLOCK_BYTES = 2**20


class CorpusFile(msgspec.Struct, frozen=True):
    """Which corpus it was: its file's name, size and SHA-256."""

    name: str
    bytes: int
    sha256: str


class Mark(msgspec.Struct, frozen=True):
    """A place between two lines: bytes of text and lines before it."""

    position: int = 0
    line: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Passages that follow one another, the line of each, and where the next ones begin."""

    passages: list[Passage]
    lines: list[int]
    end: Mark


class _Row(msgspec.Struct):
    """A line, as far as it is read; other fields are allowed."""

    id: str | int
    contents: str


_decode = msgspec.json.Decoder(_Row).decode


def fingerprint(corpus: Path, progress: Callable[[int, int], None]) -> CorpusFile:
    """Read the whole file; `progress` is called with the bytes read and all bytes."""
    digest = hashlib.sha256()
    with _opened(corpus) as file:
        size = corpus.stat().st_size
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            progress(file.tell(), size)
    return CorpusFile(corpus.name, size, digest.hexdigest())


def read_chunks(
    corpus: Path, size: int, start: Mark, progress: Callable[[int], None]
) -> Iterator[Chunk]:
    """Chunks of `size` passages, the last one shorter, from `start` on.

    `progress` is called with the bytes that were read. Raises `BadRequest` with the line's
    number where a line is no passage. Blank lines are passed over.
    """
    with _opened(corpus) as raw:
        text: IO[bytes] = raw
        if corpus.suffix == ".gz":
            text = cast(IO[bytes], gzip.GzipFile(fileobj=raw))
        try:
            text.seek(start.position)
            line = start.line
            while chunk := _read_chunk(corpus, text, size, line):
                line = chunk.end.line
                yield chunk
                progress(raw.tell())
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BadRequest(
                f"{corpus} is not a complete gzip file ({error}); download it again"
            ) from error


def _read_chunk(corpus: Path, text: IO[bytes], size: int, line: int) -> Chunk | None:
    passages: list[Passage] = []
    lines: list[int] = []
    while len(passages) < size and (raw := text.readline()):
        line += 1
        if not raw.isspace():
            passages.append(_parse(corpus, line, raw))
            lines.append(line)
    return Chunk(passages, lines, Mark(text.tell(), line)) if passages else None


def _parse(corpus: Path, line: int, raw: bytes) -> Passage:
    try:
        row = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(
            f"{corpus}, line {line} is not a passage: {error}; "
            'a line looks like {"id": "7", "contents": "\\"Title\\"\\nText"}'
        ) from error
    if row.id == "":
        raise BadRequest(f"{corpus}, line {line} has an empty id; give each passage its own id")
    return Passage(str(row.id), row.contents)


def _opened(corpus: Path) -> IO[bytes]:
    try:
        return corpus.open("rb")
    except OSError as error:
        raise BadRequest(f"cannot read the corpus {corpus}: {error.strerror}") from error


TEXT_FILE = "passages.bin"

OFFSETS_FILE = "passages.offsets.npy"


class PassageStore:
    """The passages of a folder by number; safe to read from several threads."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TEXT_FILE
        self._offsets = mapped(folder / OFFSETS_FILE)
        with self._path.open("rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._offsets[-1] != len(self._text):
            raise damaged(
                folder / OFFSETS_FILE,
                f"its texts end at byte {self._offsets[-1]}, and {TEXT_FILE} at {len(self._text)}",
            )

    def __len__(self) -> int:
        return len(self._offsets) // 2

    def __getitem__(self, number: int) -> Passage:
        start, middle, end = self._offsets[2 * number : 2 * number + 3].tolist()
        try:
            return Passage(self._text[start:middle].decode(), self._text[middle:end].decode())
        except UnicodeDecodeError as error:
            raise damaged(self._path, f"passage {number} is not UTF-8 ({error})") from error


def write_passages(folder: Path, passages: Sequence[Passage]) -> None:
    """Put passages into an empty folder."""
    pieces = [text.encode() for passage in passages for text in (passage.id, passage.contents)]
    (folder / TEXT_FILE).write_bytes(b"".join(pieces))
    offsets = np.fromiter(accumulate(map(len, pieces), initial=0), np.int64)  # (2N + 1,)
    np.save(folder / OFFSETS_FILE, offsets)


def join_passages(parts: Sequence[Path], folder: Path) -> None:
    """Put the passages of several folders, in order, into one that has none."""
    counts = [len(mapped(part / OFFSETS_FILE)) - 1 for part in parts]
    offsets = new_map(folder / OFFSETS_FILE, np.int64, sum(counts) + 1)
    done = 0
    with (folder / TEXT_FILE).open("wb") as text:
        for part, count in zip(parts, counts, strict=True):
            offsets[done : done + count + 1] = np.load(part / OFFSETS_FILE) + text.tell()
            done += count
            with (part / TEXT_FILE).open("rb") as piece:
                shutil.copyfileobj(piece, text)


LINES_FILE: Final = "lines.npy"

_DIGESTS_FILE: Final = "digests.npy"


def write_ids(folder: Path, passages: Sequence[Passage], lines: Sequence[int]) -> None:
    """Put a digest of each id, and the line it is from, into a chunk's folder."""
    digests = b"".join(hashlib.blake2b(p.id.encode(), digest_size=8).digest() for p in passages)
    np.save(folder / _DIGESTS_FILE, np.frombuffer(digests, np.uint64))
    np.save(folder / LINES_FILE, np.array(lines, np.int64))


def refuse_twins(corpus: Path, chunks: Sequence[Path]) -> None:
    """Raise `BadRequest` with both lines where two passages of a corpus share their id."""
    digests = np.concatenate([np.load(chunk / _DIGESTS_FILE) for chunk in chunks])  # (N,)
    ordered = np.sort(digests)
    shared = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    suspects = np.flatnonzero(np.isin(digests, shared))
    ends = np.cumsum([len(mapped(chunk / LINES_FILE)) for chunk in chunks])
    seen: dict[str, int] = {}
    for number in suspects.tolist():
        chunk = int(np.searchsorted(ends, number, side="right"))
        place = number - (int(ends[chunk - 1]) if chunk else 0)
        passage_id = PassageStore(chunks[chunk])[place].id
        line = int(mapped(chunks[chunk] / LINES_FILE)[place])
        if passage_id in seen:
            raise BadRequest(
                f"{corpus}, line {line} has the id {passage_id!r} of line {seen[passage_id]}; "
                "give each passage its own id"
            )
        seen[passage_id] = line


FORMAT: Final = 1

MANIFEST_FILE: Final = "index.json"

WORK_FOLDER: Final = "building"

"""Inside an index that is not finished."""

Backend = Literal["bm25", "flat", "hnsw"]


class Bm25Settings(msgspec.Struct, frozen=True, kw_only=True, tag="bm25", tag_field="kind"):
    """How words are cut and weighed."""

    method: str = "lucene"
    k1: float = 1.5
    b: float = 0.75
    lowercase: bool = True
    token_pattern: str = r"(?u)\b\w\w+\b"
    stop_words: tuple[str, ...] = ()
    stemmer: None = None


class Graph(msgspec.Struct, frozen=True):
    """How a graph of neighbours (HNSW, arXiv:1603.09320) is built and walked."""

    neighbours: int = 32
    ef_construction: int = 200
    ef_search: int = 128


class DenseSettings(msgspec.Struct, frozen=True, kw_only=True, tag="dense", tag_field="kind"):
    """How texts become vectors; their inner product is the score."""

    encoder: str
    """A name on the Hugging Face Hub, or a folder."""
    encoder_sha256: str
    """Of its weights."""
    dimension: int
    max_tokens: int
    query_prefix: str
    passage_prefix: str
    normalized: bool
    """Whether vectors have length 1, as for an encoder whose similarity is the cosine."""
    graph: Graph | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """An index: what it was made of, how, with what, and the sizes of its files in bytes."""

    format: int = FORMAT
    backend: Backend
    corpus: CorpusFile
    settings: Bm25Settings | DenseSettings
    versions: dict[str, str]
    chunk_passages: int
    passages: int = 0
    files: dict[str, int] = {}


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a whole index; raises `BadRequest` with the next step for anything less."""
    if not (folder / MANIFEST_FILE).is_file():
        if (folder / WORK_FOLDER).is_dir():
            raise BadRequest(
                f"the index {folder} is incomplete; run the same `agentgym index` command "
                "again, and it resumes"
            )
        raise BadRequest(
            f"there is no index in {folder}; make one with `agentgym index CORPUS.jsonl "
            f"--out {folder}`"
        )
    manifest = decode_manifest(folder / MANIFEST_FILE)
    for name, size in manifest.files.items():
        path = folder / name
        there = path.stat().st_size if path.is_file() else None
        if there != size:
            raise BadRequest(
                f"{path} has {'no' if there is None else there} bytes where {size} belong; "
                "copy the index again, or make it again in another folder"
            )
    return manifest


def decode_manifest(path: Path) -> Manifest:
    """A manifest as it was written; raises `BadRequest` where it is none of this version's."""
    try:
        head = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
        written = msgspec.json.decode(head.get("format", b"null"))
        if written == FORMAT:
            return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} is not an index's description: {error}") from error
    raise BadRequest(
        f"{path} is of index format {written}, and this version reads {FORMAT}; "
        "make the index again"
    )


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write it whole or not at all."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    part = path.with_suffix(".part")
    part.write_bytes(text + b"\n")
    os.replace(part, path)


_ROWS = 64

Numbers = NDArray[np.int64]

Scores = NDArray[np.float32]


class Ranking(NamedTuple):
    """Numbers of passages, best first, equal ones by number; and their scores."""

    numbers: Numbers  # (at most k,)
    scores: Scores  # (at most k,)


class Ranker(Protocol):
    """Ranks the passages of an index by number; knows nothing about their text."""

    def rank(self, queries: Sequence[str], k: int) -> list[Ranking]:
        """At most `k` passages for each query; safe to call from several threads."""
        ...


def score_space(passages: int) -> Scores:
    """Zeros for the scores of so many passages, with room so that `best` can fold them."""
    return np.zeros(-(-passages // _ROWS) * _ROWS, np.float32)


def best(scores: Scores, k: int) -> Ranking:
    """The `k` greatest of the scores in a `score_space` that are above 0.

    They are folded into columns. The k-th greatest of the columns' maxima is a lower bound of the
    k-th greatest score, so one quick pass finds the few columns that are worth a look.
    """
    folded = scores.reshape(_ROWS, -1)  # (64, C)
    tops = folded.max(axis=0)  # (C,)
    bound = np.partition(tops, -k)[-k] if k < len(tops) else np.float32(0)
    columns = np.flatnonzero(tops >= bound)  # (c,)
    few = folded[:, columns]  # (64, c)
    rows, places = np.nonzero((few >= bound) & (few > 0))
    numbers = rows * folded.shape[1] + columns[places]
    return ordered(numbers, few[rows, places], k)


def ordered(numbers: Numbers, scores: Scores, k: int) -> Ranking:
    """The `k` greatest, best first, equal ones by number."""
    order = np.lexsort((numbers, -scores))[:k]
    return Ranking(numbers[order], scores[order])
