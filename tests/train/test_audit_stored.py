"""Stored episodes of every agent are told again, row by row."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from agentgym_env.run_store import RunStore
from agentgym_env.token_store import StoredTokens, pack_tokens
from agentgym_train.audit import audit
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.models.setup import CHATML
from agentgym_train.rollout.agent import Agent, Message, format_of
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.model_actors import model_actor
from examples.small_models import small_policy
from tests.train.auditing import findings
from tests.train.inprocess import rollouts
from tests.train.templates import tokenizer_with

INSTRUCTION = "Guess."


class Twice(Agent):
    """Plays every episode again, and does not say where."""

    def reflection(self, outcome: str, observation: str) -> Message | None:
        """None yet."""
        return None


async def played(host, model, tokenizer, agent, **limits):
    """Episodes that end at their horizon, at the goal, or without room."""
    form = format_of(agent, "plain")
    told = "\n\n".join(part for part in (INSTRUCTION, form.instructions) if part)
    engine, chat = HFEngine(model, tokenizer.pad_token_id), Chat(tokenizer, told)
    engine.version = 5
    config = PolicyConfig(
        model="p", agent=agent,
        turn_max_tokens=limits.pop("turn_max_tokens", 6),
        max_tokens=limits.pop("max_tokens", 4096),
    )  # fmt: skip
    actors = model_actor(engine, chat, config)
    starts = [EpisodeSpec(str(n), n) for n in (2, 5, 6)]
    return await rollouts(host, actors).collect(starts, 6)


def run_of(tmp_path, make_host, agent, change=lambda t: t, **limits):
    """The subject of a run whose episodes were played by an agent."""
    tokenizer = tokenizer_with(CHATML)
    model = small_policy(tokenizer, layers=2, hidden=32, heads=1).eval()
    trajectories = asyncio.run(played(make_host(), model, tokenizer, agent, **limits))
    for saved in (model, tokenizer):
        saved.save_pretrained(tmp_path / "run/model")
    store = RunStore(tmp_path / "run")
    (store.path / "trajectories").mkdir()
    store.append_trajectories("eval_after", map(change, trajectories))
    config = {"model": "gone", "env": "gone/World-v0", "output_dir": "x", "steps": 5,
              "instruction": INSTRUCTION, "agent": agent}  # fmt: skip
    store.write_json("run.json", {"config": config})
    return audit.subject_of(str(store.path), "float32", {}, trusted=True), trajectories


@pytest.mark.parametrize(
    ("agent", "rows"),
    [
        ("plain", 1), ("react", 1), ("act_only", 1), ("plan_then_act", 1),
        ("window:2", 5), ("summary:2", 3), ("reflect", 2),
    ],
)  # fmt: skip
def test_a_run_of_any_agent_holds_with_every_row(tmp_path, make_host, agent, rows):
    run, trajectories = run_of(tmp_path, make_host, agent)
    assert max(len(t.rows) for t in trajectories) == rows
    found = findings(run, "stored episodes")["stored episodes"]
    assert found.status == "pass", found
    if rows > 1:
        count = sum(len(t.rows) for t in trajectories)
        assert f"in {count} rows because of context resets" in found.detail


def test_an_episode_that_had_no_room_to_answer_holds_too(tmp_path, make_host):
    run, trajectories = run_of(tmp_path, make_host, "window:4", max_tokens=70)
    assert {t.outcome for t in trajectories} == {"token_budget"}
    assert findings(run, "stored episodes")["stored episodes"].status == "pass"


@pytest.mark.parametrize("part", ["prompt_ids", "completion_ids"])
def test_a_changed_id_of_a_later_row_fails_with_its_place(tmp_path, make_host, part):
    def change(trajectory):
        row = trajectory.further_rows[0]
        ids = list(getattr(row, part))
        at = 3 if part == "prompt_ids" else row.loss_mask.index(0)
        ids[at] += 1
        further = list(trajectory.further_rows)
        further[0] = msgspec.structs.replace(row, **{part: ids})
        return msgspec.structs.replace(trajectory, further_rows=further)

    run, _ = run_of(tmp_path, make_host, "window:4", change)
    found = findings(run, "stored episodes")["stored episodes"]
    assert found.status == "FAIL"
    assert found.place.where == "eval_after.jsonl, episode 1, row 2"


@pytest.mark.parametrize("changed", [False, True])
def test_the_tokens_of_training_episodes_are_checked_where_they_are_kept(
    tmp_path, make_host, changed
):
    """A run keeps them in a file of their own, of some of its episodes."""
    run, trajectories = run_of(tmp_path, make_host, "window:2")
    store = RunStore(tmp_path / "run")
    bare = [msgspec.structs.replace(t, tokens=None, further_rows=[]) for t in trajectories]
    starts = store.append_trajectories("train", bare)
    rows = trajectories[1].rows
    if changed:
        rows = [msgspec.structs.replace(r, prompt_ids=[*r.prompt_ids[:-1], 0]) for r in rows]
    length = sum(len(row.completion_ids) for row in rows)
    packed = pack_tokens(rows, [0.0] * length)
    store.append_tokens("train", [StoredTokens(starts[0], []), StoredTokens(starts[1], [], packed)])
    run = audit.subject_of(str(store.path), "float32", {}, trusted=True)
    found = findings(run, "stored episodes")["stored episodes"]
    number, total = len(trajectories) + 1, 2 * len(trajectories)
    if changed:
        assert found.status == "FAIL" and found.place.where.startswith("train.jsonl, episode 2")
    else:
        assert found.status == "pass" and found.detail.startswith(f"{number} stored episodes")
        assert f"{total - number} of {total} stored episodes are not checked" in found.notes[0]


@pytest.mark.parametrize("part", ["logprobs", "versions", "loss_mask"])
def test_a_list_that_is_shorter_than_the_ids_fails(tmp_path, make_host, part):
    def change(trajectory):
        row = trajectory.tokens
        short = msgspec.structs.replace(row, **{part: getattr(row, part)[:-1]})
        return msgspec.structs.replace(trajectory, tokens=short)

    run, _ = run_of(tmp_path, make_host, "plain", change)
    found = findings(run, "stored episodes")["stored episodes"]
    assert found.status == "FAIL" and "different lengths" in found.detail


def test_a_row_that_is_missing_fails(tmp_path, make_host):
    def change(trajectory):
        return msgspec.structs.replace(trajectory, further_rows=trajectory.further_rows[:-1])

    run, _ = run_of(tmp_path, make_host, "window:2", change)
    assert findings(run, "stored episodes")["stored episodes"].status == "FAIL"


def test_an_agent_of_ones_own_that_plays_again_is_not_told_again(tmp_path, make_host):
    run, _ = run_of(tmp_path, make_host, f"{__name__}:Twice")
    found = findings(run, "stored episodes")["stored episodes"]
    assert found.status == "skipped" and "the ends of the trials of" in found.detail
