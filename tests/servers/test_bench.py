"""`agentgym bench` and its load generator."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentgym_env.cli.main import make_app
from agentgym_env.errors import BadRequest, EnvironmentLost
from agentgym_servers.host.bench import measure
from agentgym_servers.host.load import record_plays
from hosting import GUESS
from worlds import Guess

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_it_measures_every_road_and_writes_json(tmp_path):
    out = tmp_path / "bench.json"
    words = ["bench", GUESS, "--seconds", "0.3", "--concurrency", "1,2", "--json", str(out)]
    shown = CliRunner().invoke(make_app(words), words, catch_exceptions=False)
    report = json.loads(out.read_text())
    roads = [(row["mode"], row["sessions"]) for row in report["rows"]]
    assert roads == [
        ("in-process", 1), ("single", 1), ("single", 2), ("batched", 1), ("batched", 2),
    ]  # fmt: skip
    for row in report["rows"]:
        assert row["steps_per_s"] > 0 and row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
    assert "cores" in report["machine"] and GUESS in shown.output


@pytest.mark.parametrize(("mode", "calls_per_step"), [("single", 1), ("batched", 1 / 4)])
def test_the_server_takes_exactly_the_steps_that_are_counted(serve, mode, calls_per_step):
    server = serve()
    load = measure(server.address, mode, 4, record_plays(Guess(), 8), 0.2)
    figures = server.host.table.figures()
    assert figures.steps == load.steps > 0
    assert len(load.latencies_s) == load.steps * calls_per_step
    assert len(server.host.table) == 0


def test_a_load_on_a_server_that_refuses_is_an_error(serve):
    server = serve(max_sessions=2)
    with pytest.raises(EnvironmentLost, match="all 2 sessions are taken"):
        measure(server.address, "batched", 4, record_plays(Guess(), 8), 0.2)


def test_recorded_plays_are_the_same_every_time():
    assert record_plays(Guess(), 8) == record_plays(Guess(), 8)


def test_concurrency_is_a_list_of_counts():
    words = ["bench", GUESS, "--concurrency", "1,x"]
    with pytest.raises(BadRequest, match="--concurrency is a list"):
        CliRunner().invoke(make_app(words), words, catch_exceptions=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("http_rates.py", ["--seconds", "0.5", "--rounds", "1"]),
        ("soak.py", ["--sessions", "512", "--seconds", "22", "--ttl", "2"]),
        ("retrieval_rates.py", ["--passages", "500", "--queries", "64", "--large", "2000"]),
    ],
)
def test_the_benchmarks_run(script, words):
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *words],
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


class HalfKnown(Guess):
    """Guess with an expert who knows the even numbers alone, and no list of actions."""

    def available_actions(self):
        return None

    def expert(self):
        if self.number % 2 == 0:
            yield str(self.number)


def test_tasks_of_which_the_expert_says_nothing_are_not_played():
    plays = record_plays(HalfKnown(), 16)
    assert 0 < len(plays) < 16
    assert all(len(play.actions) == 1 for play in plays)


@pytest.mark.slow
def test_the_gpu_checks_run_with_tiny_sizes_on_a_cpu(tmp_path):
    names = [
        "update_throughput", "engine_throughput", "quickstart", "smollm2", "passes",
        "weight_updates",
    ]  # fmt: skip
    words = ["run_all.py", "--tiny", "--only", ",".join(names), "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu" / words[0]), *words[1:]],
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "all.json").read_text())
    assert found.pop("failed") == [] and list(found) == names
    assert all(figures["tiny"] and figures["machine"]["torch"] for figures in found.values())
    assert set(found["smollm2"]) > {"sft", "rl", "control"}
    assert all(found["smollm2"][s]["paper"]["episodes"] == 4 for s in ("sft", "rl", "control"))
    assert found["passes"]["microseconds_per_token"] > 0
    assert found["quickstart"]["steps"] == 2 and found["quickstart"]["sampled_tokens"] > 0
