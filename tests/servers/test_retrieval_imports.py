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


def test_a_corpus_of_the_package_needs_no_datasets():
    blocked = "".join(f"sys.modules[{n!r}] = None\n" for n in ("datasets", "pyarrow", "torch"))
    done = run(
        f"import sys\n{blocked}from agentgym_servers.worlds.search.env import Search\n"
        "print(len(Search(corpus='timezones').tasks.split('test')))"
    )
    assert done.stdout == "150\n", done.stderr


def test_questions_in_parquet_without_datasets_name_the_extra(tmp_path):
    (tmp_path / "test.parquet").touch()
    done = run(
        "import sys\nsys.modules['datasets'] = None\n"
        "from agentgym_servers.worlds.search.tasks import read_questions\n"
        f"read_questions({str(tmp_path)!r})"
    )
    assert "MissingExtra: " in done.stderr
    assert "pip install 'agentgym-sdk[train]'" in done.stderr
