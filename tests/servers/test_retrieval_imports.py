"""What the retrieval modules load, and what they say where an extra is missing."""

import subprocess
import sys

MISSING = """
import importlib, sys
from agentgym_env.errors import MissingExtra
for package, module in {"bm25s": "bm25_build", "faiss": "dense",
                        "sentence_transformers": "dense_encoder"}.items():
    sys.modules[package] = None
    try:
        importlib.import_module("agentgym_servers.worlds.search.retrieval." + module)
    except MissingExtra as error:
        print(error)
"""
WITHOUT_DATASETS = """
import sys
for package in ("datasets", "pyarrow", "torch"):
    sys.modules[package] = None
from agentgym_servers.worlds.search.env import Search
from agentgym_servers.worlds.search.tasks import read_questions
print(len(Search(corpus="timezones").tasks.split("test")), flush=True)
read_questions(sys.argv[1])
"""


def run(program, *words):
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_missing_package_names_the_extra_that_brings_it():
    done = run(MISSING)
    assert [line.partition("pip install ")[2] for line in done.stdout.splitlines()] == [
        "'agentgym-sdk[search]'", "'agentgym-sdk[search]'", "'agentgym-sdk[search-dense]'"
    ], done.stdout + done.stderr  # fmt: skip


def test_a_corpus_of_the_package_needs_no_datasets_and_questions_in_parquet_name_the_extra(
    tmp_path,
):
    (tmp_path / "test.parquet").touch()
    done = run(WITHOUT_DATASETS, tmp_path)
    assert done.stdout == "150\n", done.stderr
    assert "MissingExtra: " in done.stderr
    assert "pip install 'agentgym-sdk[train]'" in done.stderr
