"""`agentgym audit`: healthy models pass, and each rule fails on a fault of its own kind."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

from agentgym_env.errors import BadRequest
from agentgym_env.run_store import RunStore
from agentgym_train import batch
from agentgym_train.audit import check, report
from agentgym_train.audit.findings import Place, apply, shown
from agentgym_train.audit.subject import Settings, Subject
from agentgym_train.audit_command import audit
from agentgym_train.chat import Chat
from agentgym_train.engines.hf import HFEngine
from agentgym_train.engines.protocol import EngineLost
from agentgym_train.episode import EpisodeTokens
from agentgym_train.models import CHATML, small_policy
from tests.train.small import save_tiny_policy, textcraft_tokenizer
from tests.train.templates import APPEND_ONLY, DROPS_REASONING, LLAMA3, tokenizer_with

QUICK = Settings(turns=2, episodes=2, turn_max_tokens=8, instruction="Craft.")
RULES = {rule.name: rule for rule in check.RULES}
APP = typer.Typer()
APP.command()(audit)


def subject_with(template=CHATML, settings=QUICK, engine=None, **model):
    """(subject of a tiny model under `template`); `engine` makes a faulty one of a sound one."""
    tokenizer = template if not isinstance(template, str) else tokenizer_with(template)
    policy = small_policy(tokenizer, layers=2, hidden=32, heads=1).eval()
    for name, value in model.items():
        setattr(policy.config, name, value)
    sound = HFEngine(policy, tokenizer.pad_token_id)
    return Subject("tiny", policy, tokenizer, settings, engine=engine(sound) if engine else sound)


def findings(subject, *names):
    return {name: apply(RULES[name], subject) for name in names or RULES}


def failed(subject, *names):
    found = findings(subject, *names)
    return {name for name, finding in found.items() if finding.status == "FAIL"}


class Wrapped:
    """An engine that changes what goes into another, or what comes out."""

    def __init__(self, engine, ask=lambda *asked: asked, answer=lambda generation: generation):
        self._engine, self._ask, self._answer = engine, ask, answer
        self.forget, self.update_weights = engine.forget, engine.update_weights

    async def generate(self, prompt_ids, sampling, conversation=None):
        asked = self._ask(prompt_ids, sampling)
        return self._answer(await self._engine.generate(*asked, conversation))


@pytest.mark.parametrize("name", APPEND_ONLY)
def test_a_healthy_model_passes_every_rule(name):
    found = findings(subject_with(APPEND_ONLY[name], replace(QUICK, turns=3)))
    assert {f.status for f in found.values()} == {"pass", "skipped"}
    skipped = {name for name, f in found.items() if f.status == "skipped"}
    assert skipped == {"stored episodes", "stored log-probs"}
    assert found["log-probs"].figures["max"] < 1e-5
    assert " 0 of them cut short" not in found["episodes"].detail
    assert " 0 empty" not in found["episodes"].detail


def test_a_template_that_drops_earlier_reasoning_fails_and_names_the_turn():
    found = findings(subject_with(DROPS_REASONING), "chat", "append-only", "loss mask")
    assert found["chat"].status == found["append-only"].status == "FAIL"
    assert "drops the reasoning of earlier turns" in found["chat"].detail
    place = found["append-only"].place
    assert place.where == "with reasoning, after turn 1"
    assert "<think>" in place.expected and "<think>" not in place.found
    assert "keep_reasoning" in found["append-only"].remedy
    assert found["loss mask"].status == "pass"


def test_a_template_that_moves_the_instruction_to_the_last_message_fails():
    """As Mistral's does, which merges the system message into the newest user message."""
    moves = (
        "{% for m in messages %}{% if m['role'] == 'user' %}[INST] "
        "{% if loop.last and messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}\n\n"
        "{% endif %}{{ m['content'] }} [/INST]{% elif m['role'] == 'assistant' %}"
        "{{ m['content'] + eos_token }}{% endif %}{% endfor %}"
    )
    found = findings(subject_with(moves), "chat", "append-only")
    assert {f.status for f in found.values()} == {"FAIL"}
    assert "Craft." in found["append-only"].place.expected
    assert "Craft." not in found["append-only"].place.found


def test_kept_reasoning_passes_and_is_told():
    subject = subject_with(DROPS_REASONING, replace(QUICK, keep_reasoning=True))
    assert not failed(subject)
    (note,) = findings(subject, "append-only")["append-only"].notes
    assert "rewrites earlier turns (reasoning)" in note


def test_kept_reasoning_excuses_no_other_rewriting():
    forgets = CHATML.replace("{{ m['content'] }}", "{{ m['content'] if loop.index0 > 1 else '' }}")
    settings = replace(QUICK, keep_reasoning=True)
    assert "append-only" in failed(subject_with(forgets, settings), "append-only")


def test_a_template_that_strips_on_one_side_fails_where_the_ids_part():
    strips = CHATML.replace("{{ m['content'] }}", "{{ m['content'].rstrip() }}")
    found = findings(subject_with(strips, replace(QUICK, turns=6)), "turn deltas", "separators")
    assert [f.status for f in found.values()] == ["FAIL", "FAIL"]
    assert "'  spaces around  '" in found["turn deltas"].detail
    assert found["turn deltas"].place.token > 0
    assert found["separators"].place.where == "sampled episode 0, after turn 4"


def test_a_template_with_the_time_of_day_fails_and_one_with_the_date_is_told():
    at = "<|im_start|>assistant\n"
    clock = CHATML.replace(at, "<|im_start|>assistant {{ strftime_now('%H:%M:%S') }}\n")
    day = CHATML.replace(at, "<|im_start|>assistant {{ strftime_now('%d %b %Y') }}\n")
    assert failed(subject_with(clock), "clock") == {"clock"}
    found = findings(subject_with(day), "clock")["clock"]
    assert found.status == "pass" and "today's date" in found.notes[0]


def test_a_prompt_that_is_not_the_templates_fails(monkeypatch):
    monkeypatch.setattr(Chat, "start", lambda self, text: self._encode(self._next, text))
    assert failed(subject_with(), "first prompt") == {"first prompt"}


def test_without_an_end_of_turn_there_is_no_chat_and_the_rest_is_skipped_not_passed():
    plain = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    found = findings(subject_with(plain))
    assert "could not end its turn" in found["chat"].detail
    passed = {name for name, f in found.items() if f.status == "pass"}
    assert passed == {"append-only", "clock", "pad token", "vocabulary"}


def test_an_end_token_that_is_doubled_after_a_turn_fails(monkeypatch):
    sound = Chat.delta
    monkeypatch.setattr(Chat, "delta", lambda self, _, text: sound(self, [], text))
    assert failed(subject_with(), "end of turn", "turn deltas", "separators") == {
        "end of turn", "turn deltas", "separators"
    }  # fmt: skip


def test_a_separator_that_is_lost_fails_with_both_texts(monkeypatch):
    sound = Chat.delta

    def lossy(self, ids, text):
        found = sound(self, ids, text)
        newline = self._tokenizer.encode("\n", add_special_tokens=False)[0]
        found.remove(newline)
        return found

    monkeypatch.setattr(Chat, "delta", lossy)
    found = findings(subject_with(), "turn deltas", "separators")
    assert [f.status for f in found.values()] == ["FAIL", "FAIL"]
    assert found["separators"].place.expected.startswith("\n<|im_start|>user") or found[
        "separators"
    ].place.expected.startswith("<|im_end|>\n<|im_start|>")


def test_control_tokens_that_a_world_can_write_fail(monkeypatch):
    monkeypatch.setattr(Chat, "_names_control", lambda self, text: False)
    found = findings(subject_with(), "observation text")["observation text"]
    assert found.status == "FAIL"
    assert "<|im_end|>" in found.detail and "could end a turn" in found.detail


def test_an_added_token_that_is_not_special_is_told():
    tokenizer = tokenizer_with(CHATML)
    tokenizer.add_tokens(["<tool_call>"])
    found = findings(subject_with(tokenizer), "observation text")["observation text"]
    assert found.status == "pass" and "<tool_call>" in found.notes[0]


def test_an_engine_that_is_lost_fails_once_and_skips_what_needs_it():
    def unplugged(*asked):
        raise EngineLost("unplugged")

    found = findings(subject_with(engine=lambda sound: Wrapped(sound, ask=unplugged)))
    assert {n for n, f in found.items() if f.status == "FAIL"} == {"episodes"}
    assert "unplugged" in found["episodes"].detail
    assert found["log-probs"].status == "skipped"


def test_an_engine_that_does_not_stop_fails():
    def deaf(engine):
        return Wrapped(engine, ask=lambda ids, how: (ids, replace(how, stop_ids=())))

    assert failed(subject_with(engine=deaf)) == {"stopping"}


def test_an_engine_with_other_logprobs_fails_at_the_worst_token_with_both_numbers():
    def biased(generation):
        logprobs = [p - 0.01 * (i == 3) for i, p in enumerate(generation.logprobs)]
        return replace(generation, logprobs=logprobs)

    subject = subject_with(engine=lambda sound: Wrapped(sound, answer=biased))
    assert failed(subject) == {"log-probs"}
    found = findings(subject, "log-probs")["log-probs"]
    assert found.figures["max"] == pytest.approx(0.01, abs=1e-4)
    assert "the engine is off" in found.remedy
    assert "engine -" in found.place.expected and "trainer -" in found.place.found
    lenient = subject_with(
        engine=lambda sound: Wrapped(sound, answer=biased), settings=replace(QUICK, tolerance=0.02)
    )
    assert not failed(lenient, "log-probs")


def test_an_engine_that_tokenises_its_prompt_again_gives_other_logprobs():
    tokenizer = tokenizer_with(CHATML)

    def again(ids, how):
        return tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False), how

    subject = subject_with(tokenizer, engine=lambda sound: Wrapped(sound, ask=again))
    assert failed(subject) == {"log-probs"}


def test_dropout_in_training_mode_is_the_trainers_fault():
    found = findings(subject_with(LLAMA3, engine=_with_dropout), "log-probs")["log-probs"]
    assert found.status == "FAIL" and "the trainer is off. Turn off dropout" in found.remedy


def _with_dropout(engine):
    for module in engine.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    return engine


def test_a_reply_that_is_tokenised_again_fails_at_its_first_other_id(monkeypatch):
    tokenizer = tokenizer_with(CHATML)
    sound = EpisodeTokens.add_response

    def again(self, generation):
        ids = tokenizer.encode(tokenizer.decode(generation.token_ids), add_special_tokens=False)
        size = len(generation.token_ids)
        ids = (ids + generation.token_ids)[:size]
        sound(self, replace(generation, token_ids=ids))

    monkeypatch.setattr(EpisodeTokens, "add_response", again)
    found = findings(subject_with(tokenizer), "sampled ids")["sampled ids"]
    assert found.status == "FAIL" and "not the sampled ones" in found.detail
    assert found.place.expected_ids[0] != found.place.found_ids[0]


def test_a_mask_that_is_shifted_by_one_fails(monkeypatch):
    sound = EpisodeTokens.freeze

    def shifted(self):
        self.loss_mask = [0, *self.loss_mask[:-1]]
        return sound(self)

    monkeypatch.setattr(EpisodeTokens, "freeze", shifted)
    assert failed(subject_with(), "sampled ids", "loss mask", "same context") == {
        "sampled ids", "loss mask"
    }  # fmt: skip


def test_a_context_that_was_cut_before_sampling_fails(monkeypatch):
    monkeypatch.setattr(
        EpisodeTokens, "ids", property(lambda self: (self.prompt_ids + self.completion_ids)[1:])
    )
    assert "same context" in failed(subject_with(), "same context")


def test_rewards_at_another_turns_tokens_fail(monkeypatch):
    sound = batch._ends
    monkeypatch.setattr(batch, "_ends", lambda row, turns: [e + 1 for e in sound(row, turns)])
    assert failed(subject_with(), "batch", "loss mask") == {"batch"}


def test_a_model_that_looks_at_padding_fails():
    subject = subject_with()

    def look_at_padding(module, arguments, values):
        return arguments, {**values, "attention_mask": torch.ones_like(values["input_ids"])}

    subject.model.register_forward_pre_hook(look_at_padding, with_kwargs=True)
    found = findings(subject, "padding")["padding"]
    assert found.status == "FAIL" and "columns of padding" in found.detail


def test_a_pad_token_that_is_a_word_fails():
    tokenizer = tokenizer_with(CHATML)
    tokenizer.pad_token = "craft"
    found = findings(subject_with(tokenizer), "pad token")["pad token"]
    assert found.status == "FAIL" and "ordinary token" in found.detail


def test_a_pad_token_that_ends_a_turn_passes_with_a_note():
    tokenizer = tokenizer_with(CHATML)
    tokenizer.pad_token = tokenizer.eos_token
    subject = subject_with(tokenizer)
    assert not failed(subject)
    assert "ends a turn" in findings(subject, "pad token")["pad token"].notes[0]


def test_a_token_without_an_embedding_fails():
    subject = subject_with()
    subject.tokenizer.add_tokens(["<new>"])
    found = findings(subject, "vocabulary")["vocabulary"]
    assert found.status == "FAIL" and "resize_token_embeddings" in found.remedy


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
    played = [row.trajectory for row in subject.episodes.sampled]
    store.append_trajectories("eval_after", map(change, played))
    store.append_trajectories("train", [_replaced(played[0], tokens=None)])
    return check.subject_of(str(store.path), "float32", {"turns": 2, "episodes": 2})


def _replaced(struct, **changes):
    return type(struct)(**{**{f: getattr(struct, f) for f in struct.__struct_fields__}, **changes})


def _at_step(number):
    def change(trajectory):
        tokens = trajectory.tokens
        versions = [number if m else -1 for m in tokens.loss_mask]
        return _replaced(trajectory, tokens=_replaced(tokens, versions=versions))

    return change


STORED = ("stored episodes", "stored log-probs")


def test_a_runs_stored_episodes_are_held_against_its_last_weights(tmp_path):
    run = run_of(tmp_path, subject_with(), _at_step(5))
    found = findings(run, *STORED)
    assert {f.status for f in found.values()} == {"pass"}
    assert "1 of 3 stored episodes have no tokens" in found["stored episodes"].notes[0]
    with torch.no_grad():
        run.model.lm_head.weight.mul_(1.5)
    assert failed(run, *STORED) == {"stored log-probs"}


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
    assert "18 rules hold, 0 fail, 2 skipped" in done.output
    written = json.loads((tmp_path / "audit.json").read_text())
    assert written["passed"] and written["counts"] == {"pass": 18, "FAIL": 0, "skipped": 2}
    assert [rule["rule"] for rule in written["rules"]] == list(RULES)
    assert all(rule["proves"] for rule in written["rules"])


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
    with pytest.raises(BadRequest, match="no training run"):
        check.subject_of(str(tmp_path), "float32", {})
    assert "float8" in str(CliRunner().invoke(APP, ["x", "--dtype", "float8"]).exception)


def test_terminal_escapes_are_shown_as_text():
    hostile = "\x1b[31mred\x1b[0m\x07 \u202e [bold]\ud800 é 雪"
    assert shown(hostile) == "\\x1b[31mred\\x1b[0m\\x07 \\u202e [bold]\\ud800 é 雪"
    subject = subject_with(settings=replace(QUICK, turns=12, episodes=2))
    with (console := Console(record=True, force_terminal=False, width=10_000)).capture() as said:
        report.print_spans(console, subject, 10)
        report._print_place(console, Place("x", 1, [1], [2], hostile, hostile))
    assert "\\x1b[31mred" in said.get()
    assert "\x1b" not in said.get() and "\x07" not in said.get() and "\u202e" not in said.get()


def test_the_same_seed_gives_the_same_audit():
    texts = [
        json.dumps(report.as_json(s, list(check.audit(s))))
        for s in (subject_with(), subject_with())
    ]
    assert texts[0] == texts[1]


def test_a_real_tokenizer_of_a_world_passes():
    assert not failed(subject_with(textcraft_tokenizer()))
