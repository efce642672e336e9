"""`agentgym audit`: healthy models and runs pass; the command, its output and exit status."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

from agentgym_env.errors import BadRequest
from agentgym_env.printable import one_line
from agentgym_env.run_store import RunStore
from agentgym_train.audit import audit as check
from agentgym_train.audit import printing
from agentgym_train.audit.rules import ConversationDifference, RuleResult
from agentgym_train.cli.audit import audit as audit_command
from examples.small_models import small_policy
from tests.train.auditing import QUICK, RULES, failed, findings, subject_with
from tests.train.small import save_tiny_policy, textcraft_tokenizer
from tests.train.templates import APPEND_ONLY, DROPS_REASONING, tokenizer_with

APP = typer.Typer()
APP.command()(audit_command)


@pytest.mark.parametrize("name", APPEND_ONLY)
def test_a_healthy_model_passes_every_rule(name):
    found = findings(subject_with(APPEND_ONLY[name], replace(QUICK, turns=3)))
    assert {f.status for f in found.values()} == {"pass", "skipped"}
    skipped = {name for name, f in found.items() if f.status == "skipped"}
    assert skipped == {"stored episodes"}
    assert found["log-probs"].figures["max"] < 1e-5
    assert " 0 of them truncated" not in found["episodes"].detail


def test_log_probs_are_compared_at_the_temperature_of_sampling():
    found = findings(subject_with(settings=replace(QUICK, temperature=0.6)), "log-probs")
    assert found["log-probs"].status == "pass" and found["log-probs"].figures["max"] < 1e-5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_pass_with_their_own_tolerance(dtype):
    subject = subject_with()
    subject.model.to(getattr(torch, dtype))
    found = findings(subject, "log-probs", "padding")
    assert {f.status for f in found.values()} == {"pass"}
    assert found["log-probs"].figures["tolerance"] == 2e-2


def run_of(tmp_path, subject, change=lambda trajectory: trajectory):
    """A run folder whose `eval_after` holds the subject's own episodes."""
    subject.model.save_pretrained(tmp_path / "run/model")
    subject.tokenizer.save_pretrained(tmp_path / "run/model")
    config = {"model": "gone", "env": "gone/World-v0", "output_dir": "x", "steps": 5,
              "instruction": "Craft.", "turn_max_tokens": 8}  # fmt: skip
    store = RunStore(tmp_path / "run")
    (store.path / "trajectories").mkdir()
    store.write_json("run.json", {"config": config})
    played = [row.trajectory for row in subject.episodes.rows]
    store.append_trajectories("eval_after", map(change, played))
    store.append_trajectories("train", [_replaced(played[0], tokens=None)])
    return check.subject_of(str(store.path), "float32", {"turns": 2, "episodes": 2})


def _replaced(struct, **changes):
    return type(struct)(**{**{f: getattr(struct, f) for f in struct.__struct_fields__}, **changes})


STORED = ("stored episodes",)


def test_a_runs_stored_episodes_are_held_against_its_model(tmp_path):
    found = findings(run_of(tmp_path, subject_with()), *STORED)["stored episodes"]
    assert found.status == "pass" and found.detail.startswith("2 stored episodes have the tokens")
    assert "1 of 3 stored episodes are not checked" in found.notes[0]


def test_a_stored_mask_that_is_shifted_fails_with_the_line(tmp_path):
    def shifted(trajectory):
        tokens = trajectory.tokens
        mask = [0, *tokens.loss_mask[:-1]]
        return _replaced(trajectory, tokens=_replaced(tokens, loss_mask=mask))

    found = findings(run_of(tmp_path, subject_with(), shifted), *STORED)
    assert found["stored episodes"].status == "FAIL"
    assert found["stored episodes"].place.where == "eval_after.jsonl, episode 1, turn 1"


def test_a_run_without_tokens_is_skipped_and_says_so(tmp_path):
    run = run_of(tmp_path, subject_with(), lambda t: _replaced(t, tokens=None))
    found = findings(run, *STORED)
    assert {f.status for f in found.values()} == {"skipped"}
    assert found["stored episodes"].detail == "none of the 3 stored episodes has tokens"


def test_the_command_passes_shows_spans_without_colour_and_writes_json(tmp_path):
    model = save_tiny_policy(tmp_path / "tiny")
    words = [model, "--turns", "2", "--episodes", "2", "--turn-max-tokens", "8", "--show", "2"]
    done = CliRunner().invoke(APP, [*words, "--json", str(tmp_path / "audit.json")])
    assert done.exit_code == 0, done.output
    assert "legend" in done.output and "TRAINED [" in done.output and "masked  [" in done.output
    assert "rules passed, 0 failed, 1 skipped" in done.output
    written = json.loads((tmp_path / "audit.json").read_text())
    assert written["passed"] and written["counts"] == {"pass": 12, "FAIL": 0, "skipped": 1}
    assert [rule["rule"] for rule in written["rules"]] == list(RULES)
    assert all(rule["proves"].endswith(".") for rule in written["rules"])


def test_the_command_exits_with_1_on_drift_and_says_what_to_do(tmp_path):
    tokenizer = tokenizer_with(DROPS_REASONING)
    small_policy(tokenizer, layers=2, hidden=32, heads=1).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    words = [str(tmp_path), "--turns", "1", "--episodes", "2", "--turn-max-tokens", "4"]
    done = CliRunner().invoke(APP, words)
    assert done.exit_code == 1, done.output
    assert "FAIL     append-only" in done.output
    assert "first at  with reasoning, after turn 1" in done.output
    assert "do        use an append-only template" in done.output
    kept = CliRunner().invoke(APP, [*words, "--keep-reasoning"])
    assert kept.exit_code == 0, kept.output


def test_what_is_no_model_and_no_run_is_a_bad_request(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in (str(tmp_path), str(tmp_path / "gone"), "nobody/nothing"):
        assert isinstance(CliRunner().invoke(APP, [name]).exception, BadRequest)
    (tmp_path / "run.json").write_text('{"config": {}}')
    with pytest.raises(BadRequest, match="not a training run"):
        check.subject_of(str(tmp_path), "float32", {})
    facts = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(
        json.dumps(facts | {"config": {"model": "x", "method": "sft"}})
    )
    with pytest.raises(BadRequest, match=r"a run of method sft, .*/model$"):
        check.subject_of(str(tmp_path), "float32", {})
    assert "float8" in str(CliRunner().invoke(APP, ["x", "--dtype", "float8"]).exception)


def test_terminal_escapes_are_shown_as_text():
    hostile = "\x1b[31mred\x1b[0m\x07 \u202e [bold]\ud800 é 雪"
    assert one_line(hostile) == "\\x1b[31mred\\x1b[0m\\x07 \\u202e [bold]\\ud800 é 雪"
    subject = subject_with(settings=replace(QUICK, turns=12, episodes=2))
    with (console := Console(record=True, force_terminal=False, width=10_000)).capture() as said:
        printing.print_spans(console, subject, 10)
        place = ConversationDifference("x", 1, [1], [2], hostile, hostile)
        printing.print_finding(console, RuleResult(hostile, [hostile], status="FAIL", place=place))
    assert "\\x1b[31mred" in said.get()
    assert "\x1b" not in said.get() and "\x07" not in said.get() and "\u202e" not in said.get()


def test_the_same_seed_gives_the_same_audit():
    one, two = subject_with(), subject_with()
    found = [[(f.rule, f.status, f.notes) for f in check.audit(s)] for s in (one, two)]
    assert found[0] == found[1]
    rows = zip(one.episodes.rows, two.episodes.rows, strict=True)
    for row, other in rows:
        assert (row.ids, row.tokens.loss_mask) == (other.ids, other.tokens.loss_mask)
        # Which turns were sampled side by side depends on the clock, and sums on that.
        assert row.tokens.logprobs == pytest.approx(other.tokens.logprobs, abs=1e-5)


def test_a_real_tokenizer_of_a_world_passes():
    assert not failed(subject_with(textcraft_tokenizer()))
