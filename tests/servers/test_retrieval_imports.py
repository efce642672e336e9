"""What the retrieval modules load, and what they say where an extra is missing."""

import subprocess
import sys

import pytest

from retrieving import FACTS, bm25_index

HEAVY = ("bm25s", "faiss", "torch", "sentence_transformers", "uvicorn")


def run(program):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_contract_and_a_bm25_index_need_none_of_the_heavy_packages(tmp_path):
    index = bm25_index(tmp_path, FACTS)
    blocked = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in HEAVY)
    done = run(
        f"{blocked}import agentgym_servers.worlds.search.retrieval.corpus\n"
        "from agentgym_servers.worlds.search.retrieval.retriever import open_retriever\n"
        f"print(open_retriever({str(index)!r}).search(['snakes'], 1)[0][0].passage.id)"
    )
    assert done.stdout == "snake\n", done.stderr


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [
        ("bm25s", "bm25_build", "search"),
        ("faiss", "dense", "search"),
        ("sentence_transformers", "dense_encoder", "search-dense"),
    ],
)
def test_a_missing_package_names_the_extra_that_brings_it(package, module, extra):
    done = run(
        f"import sys\nsys.modules[{package!r}] = None\n"
        f"import agentgym_servers.worlds.search.retrieval.{module}"
    )
    assert "MissingExtra: " in done.stderr
    assert f"pip install 'agentgym-sdk[{extra}]'" in done.stderr
