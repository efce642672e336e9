"""The conformance suite: a sound environment passes, and every rule can fail."""

import subprocess
import sys

import pytest

from agentgym_env.conformance import RULES, check_environment
from agentgym_env.errors import UnknownEnvironment


def findings(name: str, **settings):
    return {f.rule: f for f in check_environment(f"faulty:{name}", **settings)}


def test_a_sound_environment_keeps_every_promise():
    found = findings("Sound")
    assert list(found) == list(RULES)
    assert [f for f in found.values() if not (f.passed and f.applied)] == []
    assert found["interleaved sessions do not leak"].detail == "64 sessions"


def test_what_an_environment_does_not_have_is_not_counted_against_it():
    found = findings("NoExpert", sessions=4)
    expert = found["the expert solves the tasks it acts on"]
    assert (expert.passed, expert.applied, expert.detail) == (True, False, "it has no expert")
    assert all(f.passed for f in found.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "broken", "reason"),
    [
        ("NarrowSpace", "Gymnasium's checker passes without a warning", "observation"),
        ("NoDefaultSplit", "the splits are disjoint", "default_split 'training' names no task"),
        ("GlobalRandom", "a seed and a task determine the episode", "in another order"),
        ("HashOrder", "other processes give the same episode", "hash seed"),
        ("ProcessBound", "other processes give the same episode", "hash seed 1"),
        ("ProcessBound", "in-process and HTTP responses are identical", "over HTTP"),
        ("NarrowActions", "the spaces contain every observation and action", "yes"),
        (
            "DrawsWhenAsked",
            "available_actions and expert_action change nothing",
            "when it is queried",
        ),
        ("BadExpert", "the expert solves the tasks it acts on", "gives up after 1 turns"),
        ("GoesOnAfterTheEnd", "a step outside an episode is an error", "EpisodeOver"),
        ("RaisesOnNothing", "garbage and 1 MB actions never raise", "nothing raises IndexError"),
        ("EchoesTwice", "garbage and 1 MB actions never raise", "cut what is quoted"),
        ("SharedCount", "interleaved sessions do not leak", "among 8 sessions"),
        ("RaisesWhenMade", "the splits are disjoint", "OSError: no disc"),
    ],
)
def test_a_broken_promise_is_found(name, broken, reason):
    finding = findings(name, sessions=8)[broken]
    assert not finding.passed and reason in finding.detail


def test_an_unknown_environment_is_the_callers_mistake():
    with pytest.raises(UnknownEnvironment):
        list(check_environment("faulty:Nowhere"))


def run_check(worlds_folder, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from agentgym_env.cli import main; main()", "check", *words],
        capture_output=True, text=True, check=False, timeout=100, cwd=worlds_folder,
    )  # fmt: skip


def test_the_command_prints_a_line_a_rule_and_exits_with_1(worlds_folder):
    done = run_check(worlds_folder, "faulty:BadExpert", "--sessions", "4")
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert [line[:4] for line in lines].count("FAIL") == 1 and len(lines) == len(RULES) + 1
    assert lines[-1] == f"1 of {len(RULES)} checks failed"


def test_the_command_is_content_with_a_sound_environment(worlds_folder):
    done = run_check(worlds_folder, "faulty:Sound", "--sessions", "4")
    assert (done.returncode, done.stdout.count("ok  "), done.stderr) == (0, len(RULES), "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no environment 'nowhere'"),
        (["faulty:Sound", "--env-kwargs", "{"], "not valid JSON"),
    ],
)
def test_the_commands_own_mistakes_are_one_line(worlds_folder, words, message):
    done = run_check(worlds_folder, *words)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
