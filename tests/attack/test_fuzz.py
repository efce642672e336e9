"""Generated inputs: calls of a server, episodes in files, lines of run folders, configs.

Schemathesis, with what a server's own description allows, is in tests/servers.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgym_env.errors import AgentGymError
from agentgym_env.run_store import RunStore
from agentgym_env.wire import JSON, MSGPACK
from agentgym_servers.host import routes
from agentgym_servers.host.inline_host import Host
from agentgym_servers.host.sessions import SessionTable
from agentgym_train.config.read import CONFIGS, read_method_config
from agentgym_train.data.formats import read_episodes
from agentgym_viewer.index import EpisodeIndex
from agentgym_viewer.indexer import Indexer
from tests.viewer.viewing import as_line, episode
from worlds import Guess

pytestmark = pytest.mark.slow
FUZZ = settings(
    max_examples=3000, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30]),
    st.floats(),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=30)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def changed(row: dict) -> st.SearchStrategy[dict]:
    """A valid row in which some values are others, or missing, or too many."""
    keys = st.sampled_from(sorted(row))
    others = st.dictionaries(st.one_of(keys, st.text(max_size=8)), VALUES, max_size=4)
    return st.tuples(others, st.sets(keys, max_size=2)).map(
        lambda made: {k: v for k, v in {**row, **made[0]}.items() if k not in made[1]}
    )


def test_calls_of_a_server_are_always_answered(caplog):
    host = Host(SessionTable(Guess, env_id="tests/Guess-v0", max_sessions=16, ttl_s=3600))
    _, _, body = host.handle("POST", "/v1/sessions", body=b"[{}]", content_type=JSON)
    session = json.loads(body)[0]["session"]
    item = {"session": session, "turn": 1, "action": "5", "seed": 3, "task": "1", "env": "x"}
    paths = st.one_of(
        st.sampled_from([route.path for route in routes.ROUTES]), st.text(max_size=20)
    )
    bodies = st.one_of(
        st.binary(max_size=200),
        st.lists(changed(item), max_size=3).map(lambda rows: written(rows, JSON)),
        st.lists(changed(item), max_size=3).map(lambda rows: written(rows, MSGPACK)),
    )
    statuses: dict[int, int] = {}

    @FUZZ
    @given(
        st.sampled_from(["GET", "POST", "PUT", ""]), paths, st.text(max_size=30), bodies,
        st.one_of(st.sampled_from([JSON, MSGPACK]), st.text(max_size=20)),
        st.one_of(st.sampled_from([JSON, MSGPACK, ""]), st.text(max_size=20)),
    )  # fmt: skip
    def fuzz(method, path, query, sent, content_type, accept):
        status, _, answer = host.handle(method, path, query, sent, content_type, accept)
        assert 200 <= status < 500 and isinstance(answer, bytes), (status, answer)
        statuses[status] = statuses.get(status, 0) + 1

    with caplog.at_level(logging.ERROR):
        fuzz()
    assert not caplog.records
    assert host.handle("GET", "/health")[0] == 200
    sys.stdout.write(f"calls by status: {dict(sorted(statuses.items()))}\n")
    assert {200, 400} <= statuses.keys(), "valid calls and invalid ones"


def written(rows: list[dict], kind: str) -> bytes:
    """A body; numbers that a format lacks make it one of the other's, which is invalid too."""
    try:
        return msgspec.msgpack.encode(rows) if kind == MSGPACK else msgspec.json.encode(rows)
    except (OverflowError, msgspec.EncodeError, UnicodeEncodeError):
        return json.dumps(rows).encode()


def test_episodes_in_files_are_read_or_named(tmp_path):
    whole = json.loads(as_line(episode(1)))
    message = {"role": "user", "content": "hello"}
    row = {"messages": [message, {"role": "assistant", "content": "go"}], **whole}
    path = tmp_path / "episodes.jsonl"
    counts = {"read": 0, "named": 0}

    # A first line that is a list is a file of another form.
    rows = st.one_of(changed(row), changed(whole), VALUES.filter(lambda v: not isinstance(v, list)))

    @FUZZ
    @given(rows.map(json.dumps))
    def fuzz(line):
        path.write_text(line + "\n" + json.dumps(whole) + "\n", encoding="utf-8")
        reading = read_episodes(path)
        assert len(reading.trajectories) >= 1, "the other episode is read"
        assert len(reading.broken) + len(reading.trajectories) == 2
        counts["named" if reading.broken else "read"] += 1

    fuzz()
    sys.stdout.write(f"lines: {counts}\n")
    assert min(counts.values()) > 50


def test_lines_of_run_folders_hide_no_other_line(tmp_path):
    whole = json.loads(as_line(episode(1)))
    lines: list[str] = []

    @FUZZ
    @given(st.one_of(changed(whole), VALUES).map(json.dumps))
    def collect(line):
        lines.append(line)

    collect()
    store = RunStore.create(tmp_path / "run", {"config": {}})
    good = as_line(episode(2, task="readable")).decode().strip()
    rows = [line for bad in lines for line in (bad, good)]
    (store.path / "trajectories" / "train.jsonl").write_text("\n".join(rows) + "\n")
    (store.path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    episodes, broken = store.trajectories("train")
    assert sum(e.task == "readable" for e in episodes) == len(lines)
    assert len(episodes) + len(broken) == len(rows)
    store.metrics()
    index = EpisodeIndex(tmp_path / "index.sqlite")
    indexer = Indexer(index)
    try:
        indexer.follow({index.run_id(store.path): store.path})
        while indexer.read_batches():
            pass
        (found,) = index.rows("SELECT COUNT(*) FROM episodes WHERE task = 'readable'")
        assert found[0] == len(lines)
    finally:
        index.close()
    sys.stdout.write(f"{len(lines)} lines, of which {len(broken)} are named\n")


def test_configs_are_read_or_refused(tmp_path):
    path = tmp_path / "config.yaml"
    base = {"model": "hub/id", "env": "textcraft", "output_dir": "x", "data": ["y"], "method": "rl"}
    known = {f.name: f.default for kind in CONFIGS.values() for f in fields(kind)}
    counts = {"read": 0, "refused": 0}
    values = st.one_of(VALUES, st.sampled_from(["os:system", "plain", "grpo", "1e-3", "~x", ""]))
    # What is valid by itself too: almost all of the others are refused.
    plain = {name: value for name, value in known.items() if isinstance(value, str | int | float)}
    settings = st.one_of(
        st.tuples(st.sampled_from(sorted(known)), values), st.sampled_from(sorted(plain.items()))
    )

    @FUZZ
    @given(st.lists(settings, max_size=2).map(dict), st.sampled_from(list(CONFIGS)))
    def fuzz(some, method):
        made = {**base, "method": method, **some}
        if method == "rl" and "data" not in some:
            del made["data"]
        path.write_text(yaml.safe_dump(made, allow_unicode=True), encoding="utf-8")
        try:
            read_method_config(Path(path))
        except AgentGymError as error:
            assert "\n" not in str(error).strip() or "YAML" in str(error)
            counts["refused"] += 1
        else:
            counts["read"] += 1

    fuzz()
    sys.stdout.write(f"configs: {counts}\n")
    assert min(counts.values()) > 50
