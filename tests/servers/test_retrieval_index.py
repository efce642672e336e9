"""`agentgym index`: what is made, what is refused, and what a kill leaves."""

import gzip
import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from agentgym_env.errors import BadRequest
from agentgym_servers.worlds.search.retrieval.__main__ import main
from agentgym_servers.worlds.search.retrieval.bm25_build import Bm25Maker
from agentgym_servers.worlds.search.retrieval.build import build_index
from agentgym_servers.worlds.search.retrieval.manifest import read_manifest
from agentgym_servers.worlds.search.retrieval.passages import Passage, PassageStore
from agentgym_servers.worlds.search.retrieval.retriever import open_retriever
from retrieving import (
    FACTS,
    bm25_index,
    contents_of,
    index_command,
    run_index,
    write_corpus,
    zipf_passages,
)


class Stopped(Exception):
    """Stands for a kill at a chosen moment."""


def stop_at(stage, count):
    """A listener that raises when it hears of `stage` for the `count`-th time."""
    heard = 0

    def told(now, done, of):
        nonlocal heard
        heard += now == stage
        if heard == count:
            raise Stopped

    return told


def test_an_index_holds_every_passage_and_says_what_it_is(tmp_path):
    passages = zipf_passages(250)
    index = bm25_index(tmp_path, passages, chunk_passages=100)
    store = PassageStore(index)
    assert [store[n] for n in range(len(store))] == passages
    manifest = read_manifest(index)
    assert (manifest.backend, manifest.passages, manifest.corpus.name) == (
        "bm25", 250, "corpus.jsonl",
    )  # fmt: skip
    assert set(manifest.versions) == {"bm25s", "numpy"}
    assert (manifest.settings.k1, manifest.settings.b, manifest.settings.stemmer) == (
        1.5,
        0.75,
        None,
    )
    assert "the" in manifest.settings.stop_words and manifest.settings.lowercase
    assert not (index / "building").exists()


def test_the_command_says_what_it_made_and_a_second_run_changes_nothing(ended, tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", FACTS)
    done = run_index(corpus, "--out", tmp_path / "i", "--k1", 0.9, "--b", 0.4)
    assert done.returncode == 0, done.stderr
    assert "4 passages, bm25" in done.stdout and "100%" in done.stderr
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "i").iterdir()}
    words = ("index", corpus, "--out", tmp_path / "i", "--k1", 0.9, "--b", 0.4)
    assert ended(main, *words)[0] == 0
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "i").iterdir()} == before
    assert json.loads((tmp_path / "i" / "index.json").read_text())["settings"]["k1"] == 0.9


@pytest.mark.slow
def test_a_build_that_was_killed_goes_on_and_ends_with_the_same_bytes(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", zipf_passages(20_000))
    words = (corpus, "--chunk-passages", 100, "--out")
    assert run_index(*words, tmp_path / "whole").returncode == 0
    out = tmp_path / "killed"
    process = subprocess.Popen(index_command(*words, out), stderr=subprocess.DEVNULL)
    while not (out / "building" / "000002").is_dir() and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    first = (out / "building" / "000000").stat().st_ino
    with pytest.raises(BadRequest, match=r"run the same `agentgym index` command again"):
        open_retriever(str(out))
    with pytest.raises(Stopped):
        build_index(corpus, out, Bm25Maker(chunk_passages=100), stop_at("write", 1))
    assert (out / "building" / "000000").stat().st_ino == first, "finished chunks are kept"
    assert run_index(*words, out).returncode == 0
    assert contents_of(out) == contents_of(tmp_path / "whole")


@pytest.mark.parametrize(
    ("stage", "count"),
    [
        ("check", 1),
        ("read", 1),
        ("read", 2),
        ("read", 5),
        ("write", 1),
        ("write", 7),
        ("write", 10),
    ],
)
def test_a_build_stopped_at_any_stage_ends_with_the_same_bytes(tmp_path, stage, count):
    whole = bm25_index(tmp_path / "whole", zipf_passages(500), chunk_passages=100)
    corpus, out = tmp_path / "whole" / "corpus.jsonl", tmp_path / "out"
    with pytest.raises(Stopped):
        build_index(corpus, out, Bm25Maker(chunk_passages=100), stop_at(stage, count))
    build_index(corpus, out, Bm25Maker(chunk_passages=100))
    assert contents_of(out) == contents_of(whole)


@pytest.mark.slow
def test_the_size_of_a_chunk_changes_no_file_but_the_manifest(tmp_path):
    passages = [*zipf_passages(300), Passage("empty", ""), Passage("stop words", "the of")]
    one = contents_of(bm25_index(tmp_path / "all", passages, chunk_passages=302))
    for size in (1, 7):
        many = contents_of(bm25_index(tmp_path / str(size), passages, chunk_passages=size))
        assert {n for n in one if one[n] != many[n]} == {"index.json"}


def test_a_corpus_without_a_word_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="no passage of the corpus contains a word"):
        bm25_index(tmp_path, [Passage("a", ""), Passage("b", "the of")])


def test_a_gzipped_corpus_goes_on_where_it_was_and_gives_the_same_index(tmp_path):
    plain = bm25_index(tmp_path / "plain", zipf_passages(300), chunk_passages=100)
    corpus = tmp_path / "c.jsonl.gz"
    corpus.write_bytes(gzip.compress((tmp_path / "plain" / "corpus.jsonl").read_bytes()))
    with pytest.raises(Stopped):
        build_index(corpus, tmp_path / "i", Bm25Maker(chunk_passages=100), stop_at("read", 3))
    build_index(corpus, tmp_path / "i", Bm25Maker(chunk_passages=100))
    ours, theirs = contents_of(tmp_path / "i"), contents_of(plain)
    assert {n for n in ours if ours[n] != theirs[n]} == {"index.json"}
    corpus.write_bytes(corpus.read_bytes()[:-20])
    with pytest.raises(BadRequest, match="not a complete gzip file"):
        build_index(corpus, tmp_path / "j", Bm25Maker())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "b", "contents": ', "line 3 is not a passage: Input data was truncated"),
        (b"nonsense", "line 3 is not a passage"),
        (b"[1, 2]", "line 3 is not a passage: Expected `object`"),
        (b'{"id": "b"}', "line 3 is not a passage: Object missing required field `contents`"),
        (b'{"contents": "x"}', "missing required field `id`"),
        (b'{"id": null, "contents": "x"}', "line 3 is not a passage"),
        (b'{"id": "b", "contents": 7}', "line 3 is not a passage"),
        (b'{"id": "", "contents": "x"}', "line 3 has an empty id"),
        (b'{"id": "b", "contents": "\xff"}', "line 3 is not a passage"),
        (b"[" * 100_000, "line 3 is not a passage"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, message):
    corpus = tmp_path / "c.jsonl"
    corpus.write_bytes(b'{"id": "a", "contents": "x", "more": 1}\n\n' + line + b"\n")
    with pytest.raises(BadRequest, match=message):
        build_index(corpus, tmp_path / "i", Bm25Maker(chunk_passages=1))
    assert not (tmp_path / "i" / "index.json").exists()


def test_two_passages_of_one_id_are_named_by_their_lines(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", [*zipf_passages(30), zipf_passages(18)[17]])
    with pytest.raises(BadRequest, match=r"line 31 has the id '17' of line 18"):
        build_index(corpus, tmp_path / "i", Bm25Maker(chunk_passages=10))


def test_numbers_are_ids_too(tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": 7, "contents": "\\"T\\"\\nseven wonders"}')
    build_index(corpus, tmp_path / "i", Bm25Maker())
    ((hit,),) = open_retriever(str(tmp_path / "i")).search(["wonders"], 3)
    assert (hit.passage.id, hit.passage.title, hit.passage.text) == ("7", "T", "seven wonders")


def test_what_was_made_of_a_corpus_that_changed_since_is_not_mixed_with_the_new(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", zipf_passages(30))
    with pytest.raises(Stopped):
        build_index(corpus, tmp_path / "half", Bm25Maker(chunk_passages=10), stop_at("write", 1))
    build_index(corpus, tmp_path / "whole", Bm25Maker())
    with pytest.raises(BadRequest, match="another index: it was made with another settings"):
        build_index(corpus, tmp_path / "whole", Bm25Maker(k1=0.9))
    write_corpus(corpus, zipf_passages(31))
    for out in ("half", "whole"):
        with pytest.raises(BadRequest, match="the corpus has changed since; delete it, or choose"):
            build_index(corpus, tmp_path / out, Bm25Maker())


def test_what_is_no_whole_index_is_refused_with_the_next_step(tmp_path):
    with pytest.raises(BadRequest, match=r"no index in .*; make one with `agentgym index"):
        open_retriever(str(tmp_path / "nothing"))
    index = bm25_index(tmp_path, FACTS)
    manifest = (index / "index.json").read_text()
    text = (index / "passages.bin").read_bytes()
    (index / "passages.bin").write_bytes(text[:-1])
    with pytest.raises(BadRequest, match=r"passages.bin has \d+ bytes where \d+ belong; copy"):
        open_retriever(str(index))
    (index / "passages.bin").unlink()
    with pytest.raises(BadRequest, match=r"passages.bin has no bytes"):
        open_retriever(str(index))
    (index / "index.json").write_text(manifest.replace('"format": 1', '"format": 9'))
    with pytest.raises(BadRequest, match="is of index format 9, and this version reads 1"):
        open_retriever(str(index))
    (index / "index.json").write_text("{")
    with pytest.raises(BadRequest, match="is not an index's description"):
        open_retriever(str(index))


def test_a_second_build_in_the_same_folder_spoils_nothing(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", zipf_passages(30))

    def meanwhile(stage, done, of):
        if stage == "read" and done:
            build_index(corpus, tmp_path / "i", Bm25Maker(chunk_passages=10))

    with pytest.raises(BadRequest, match="no other build uses it, then run the same command again"):
        build_index(corpus, tmp_path / "i", Bm25Maker(chunk_passages=10), meanwhile)
    assert len(open_retriever(str(tmp_path / "i")).search(["w0"], 3)[0]) == 3


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    corpus = write_corpus(tmp_path / "c.jsonl", FACTS)
    with pytest.raises(BadRequest, match=r"c.jsonl/index cannot be written: .* Not a directory"):
        build_index(corpus, corpus / "index", Bm25Maker())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/no/such.jsonl"], "cannot read the corpus /no/such.jsonl: No such file"),
        (["EMPTY"], "contains no passages"),
        (["EMPTY", "--k1", "-1"], "k1 of at least 0 and b of 0 to 1, got k1 -1.0"),
        (["EMPTY", "--backend", "flat"], "--backend flat needs an --encoder"),
        (["EMPTY", "--encoder", "x"], "--encoder and the prefixes are only for --backend"),
    ],
)
def test_a_wrong_command_is_an_error_with_its_reason(ended, tmp_path, words, message):
    empty = write_corpus(tmp_path / "empty.jsonl", [])
    words = [str(empty) if word == "EMPTY" else word for word in words]
    status, errors = ended(main, "index", *words, "--out", tmp_path / "i")
    assert status == 1
    assert message in errors.replace("\n", " ")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_200_000_passages_are_indexed_in_less_than_500_mb(tmp_path):
    words = np.array([f"w{rank}" for rank in range(100_000)])
    drawn = np.random.default_rng(0).zipf(1.2, size=(200_000, 100)) % len(words)
    corpus = tmp_path / "c.jsonl"
    with corpus.open("w") as file:
        for number, row in enumerate(drawn):
            file.write(f'{{"id": "{number}", "contents": "{" ".join(words[row])}"}}\n')
    # The process tells its own peak: what its parent would be told counts the parent's too.
    program = (
        "from contextlib import suppress\n"
        "from agentgym_servers.worlds.search.retrieval.__main__ import main\n"
        "with suppress(SystemExit):\n    main()\n"
        "print(open('/proc/self/status').read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "index", str(corpus), "--out", str(tmp_path / "i")],
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    assert "200,000 passages" in done.stdout
    assert int(re.search(r"VmHWM:\s+(\d+) kB", done.stdout)[1]) < 500 * 1024


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("data.csc.index.npy", lambda data: b"\0" * 16 + data[16:]),
        ("indptr.csc.index.npy", lambda data: data[:-8] + b"\xff" * 8),
        ("indptr.csc.index.npy", lambda data: b"nonsense" + data[8:]),
        ("vocab.index.json", lambda data: data[:-3] + b"xyz"),
        ("vocab.index.json", lambda data: data.replace(b":1,", b":9,", 1).replace(b":0", b":x", 1)),
        ("passages.offsets.npy", lambda data: data[:-8] + bytes(8)),
        ("passages.offsets.npy", lambda data: data[:60] + b"\0" * 60 + data[120:]),
    ],
)
def test_a_damaged_file_of_an_index_is_named(tmp_path, name, damage):
    file = bm25_index(tmp_path, FACTS) / name
    data = file.read_bytes()
    damaged = damage(data)
    assert len(damaged) == len(data) and damaged != data
    file.write_bytes(damaged)
    with pytest.raises(BadRequest, match=f"{name} is damaged: .*; copy the index again"):
        open_retriever(str(file.parent))


@pytest.mark.parametrize(
    ("name", "start", "says"),
    [
        ("indices.csc.index.npy", 128, "is out of bounds"),
        ("passages.bin", 0, r"passage \d is not UTF-8"),
    ],
)
def test_damage_that_only_a_search_meets_is_named_there(tmp_path, name, start, says):
    file = bm25_index(tmp_path, FACTS) / name
    data = file.read_bytes()
    file.write_bytes(
        data[:start]
        + b"\xfe\xff\xff\x7f" * ((len(data) - start) // 4)
        + b"\xff" * ((len(data) - start) % 4)
    )
    retriever = open_retriever(str(file.parent))
    with pytest.raises(BadRequest, match=f"{name} is damaged: .*{says}"):
        retriever.search(["python neural networks"], 3)


def test_a_description_of_an_index_with_a_wrong_field_is_named(tmp_path):
    file = bm25_index(tmp_path, FACTS) / "index.json"
    file.write_text(file.read_text().replace('"k1": 1.5', '"k1": "much"'))
    with pytest.raises(BadRequest, match=r"index.json is not an index's description: .*k1"):
        open_retriever(str(file.parent))
