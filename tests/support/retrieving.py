"""What the retrieval tests share: corpora, a tiny encoder, a server, and what a folder holds."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentgym_servers.worlds.search.retrieval.bm25_build import Bm25Maker
from agentgym_servers.worlds.search.retrieval.build import build_index
from agentgym_servers.worlds.search.retrieval.passages import Passage
from hosting import Served

MODULE = "agentgym_servers.worlds.search.retrieval"
WORDS = 400
FACTS = [
    Passage("py", '"Python (programming language)"\nPython is a general-purpose language.'),
    Passage("nn", '"Neural network"\nNeural networks are models that learn from data.'),
    Passage("bm", '"Okapi BM25"\nA ranking function that search engines use.'),
    Passage("snake", '"Python (genus)"\nA genus of snakes of Africa and Asia. Pythons eat.'),
]


def zipf_passages(count: int, *, words: int = 20, seed: int = 0) -> list[Passage]:
    """Passages whose words are drawn from `w0`, `w1`, ... with falling frequency."""
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(WORDS)]
    names = [f"w{rank}" for rank in range(WORDS)]
    return [
        Passage(str(i), f'"T{i}"\n' + " ".join(rng.choices(names, weights, k=words)))
        for i in range(count)
    ]


def zipf_queries(count: int, seed: int = 1) -> list[str]:
    return [p.text for p in zipf_passages(count, words=8, seed=seed)]


def write_corpus(path: Path, passages: Sequence[Passage]) -> Path:
    rows = [json.dumps({"id": p.id, "contents": p.contents}) + "\n" for p in passages]
    path.write_text("".join(rows))
    return path


def bm25_index(folder: Path, passages: Sequence[Passage], **options) -> Path:
    """A BM25 index of passages in a folder that need not be there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = write_corpus(folder / "corpus.jsonl", passages)
    build_index(corpus, folder / "index", Bm25Maker(**options))
    return folder / "index"


def contents_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() if p.is_file() else b"" for p in folder.iterdir()}


def index_command(*words: object) -> list[str]:
    return [sys.executable, "-m", MODULE, "index", *map(str, words)]


def run_index(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        index_command(*words), capture_output=True, text=True, check=False, timeout=100
    )


@contextmanager
def served_index(index: str | Path, *options: str) -> Iterator[Served]:
    """`agentgym serve-retriever` as a process, on a free port."""
    words = ["serve-retriever", str(index), "--port", "0", *options]
    served = Served(Path(__file__).parent, *words, module=MODULE)
    try:
        yield served
    finally:
        served.process.kill()
        served.process.communicate()


def make_encoder(folder: Path, *, seed: int = 0, prompts: dict[str, str] | None = None) -> Path:
    """A sentence-transformers model of random weights: one layer, mean pooling, 32 dimensions."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ":", "query", "passage"]
    vocabulary += [f"w{rank}" for rank in range(WORDS)]
    bare = folder / "bare"
    BertTokenizerFast(vocab={word: i for i, word in enumerate(vocabulary)}).save_pretrained(bare)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    BertModel(config).save_pretrained(bare)
    parts = [Transformer(str(bare)), Pooling(32, "mean")]
    SentenceTransformer(modules=parts, device="cpu", prompts=prompts).save(str(folder))
    return folder
