"""Rules about the stored episodes of a run: whether they still belong to its model and template.

The first line of a rule's docstring is what it proves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import ConfigError
from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.audit.episodes import trained_spans
from agentgym_train.audit.model_rules import logprobs_of
from agentgym_train.audit.rules import (
    ConversationDifference,
    RuleFailed,
    RulePassed,
    RuleSkipped,
    first_difference,
    text_place,
)
from agentgym_train.audit.subject import AuditedModel, StoredRun
from agentgym_train.config.checks import Typed, type_of
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.data.tokenize import NO_LIMIT, act_out, tools_of
from agentgym_train.engines.base import ScriptedEngine
from agentgym_train.event_loop import run_async
from agentgym_train.rollout.agent import Agent, agent_factory, format_of, is_black_box
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.model_actors import ModelActor

_SCORED = 8
"""Number of stored rows whose log-probabilities are recomputed."""

_OTHER = (
    "the tokenizer, template, instruction or agent of the run, or its file, was changed since; "
    "restore it before training or evaluating with these episodes"
)

_AGREE = 1e-3
"""Tolerance of a stored log-probability: the run used other batches."""


def stored_episodes(subject: AuditedModel) -> RulePassed:
    """The stored tokens are those of the stored episodes."""
    stored = _stored(subject)
    if is_black_box(stored.config.agent):
        raise RuleSkipped("the agent is a program of its own, whose requests are not stored")
    chats: dict[tuple[str, str], Chat] = {}
    total = sum(map(len, stored.trajectories.values()))
    episodes = [(where, t) for where, t, _ in _episodes(stored) if t.rows]
    if not episodes:
        raise RuleSkipped(f"none of the {total} stored episodes has tokens")
    for where, trajectory in episodes:
        key = trajectory.instruction, trajectory.env
        if key not in chats:
            chats[key] = _chat_of(subject, stored, trajectory)
        _check_episode(subject, stored, where, trajectory, chats[key])
    rows, without = sum(len(t.rows) for _, t in episodes), total - len(episodes)
    notes = []
    if without:
        notes.append(f"{without} of {total} stored episodes have no tokens and are not checked")
    text = f"{len(episodes)} stored episodes"
    if rows > len(episodes):
        text += f", in {rows} rows because of context resets,"
    return RulePassed(f"{text} have the tokens of their texts", notes)


def stored_logprobs(subject: AuditedModel) -> RulePassed:
    """The stored probabilities are those of the audited weights."""
    stored = _stored(subject)
    if stored.version is None:
        raise RuleSkipped("the step of the audited weights is unknown")
    rows = [
        (name, row, heat)
        for where, trajectory, heat in _episodes(stored)
        for name, row in _rows(where, trajectory)
        if {v for v, m in zip(row.versions, row.loss_mask, strict=True) if m} == {stored.version}
    ][:_SCORED]
    if not rows:
        raise RuleSkipped(f"no stored episode was sampled with weight version {stored.version}")
    worst, tokens = 0.0, 0
    for name, row, heat in rows:
        ids = row.prompt_ids + row.completion_ids
        scores = logprobs_of(subject.model, ids, temperature=heat or 1.0)  # (P + T - 1,)
        found = scores[len(row.prompt_ids) - 1 :].tolist()
        for at, (trained, a, b) in enumerate(zip(row.loss_mask, row.logprobs, found, strict=True)):
            gap = abs(a - b) if math.isfinite(a - b) else math.inf
            if trained and gap > _tolerance(subject):
                token = row.completion_ids[at : at + 1]
                texts = (f"{subject.decode(token)} {p:.5f}" for p in (a, b))
                raise RuleFailed(
                    f"a stored log-probability differs by {gap:.2g}",
                    "the episode was sampled with other weights, or at another temperature than "
                    "the run's",
                    ConversationDifference(name, at, token, token, *texts),
                    largest=gap,
                )
            worst, tokens = max(worst, gap if trained else 0.0), tokens + trained
    text = f"{tokens} tokens of {len(rows)} stored episodes: largest difference {worst:.2g}"
    return RulePassed(text, figures={"tokens": tokens, "largest": worst})


def tokenized_again(
    trajectory: Trajectory, chat: Chat, agent: Typed, form: ActionFormat
) -> list[Tokens]:
    """Rebuild the rows of an episode from its observations and the sampled ids of its turns.

    Only ids, masks and turn ends are set. Raises `RuleSkipped` for a custom agent with several
    trials per episode, because the ends of its trials are not stored.
    """
    responses = iter(
        row.completion_ids[start:end]
        for row in trajectory.rows
        for start, end in trained_spans(row.loss_mask)
    )
    config = PolicyConfig(
        turn_max_tokens=NO_LIMIT, max_tokens=NO_LIMIT, agent=agent, action_format=form.name
    )
    actor = ModelActor(
        ScriptedEngine(lambda prompt, number: next(responses)), chat, config,
        agent=agent_factory(agent, form)(),
    )  # fmt: skip
    reflections = _reflections(trajectory, type(agent_factory(agent, form)()), type_of(agent))

    async def rows() -> list[Tokens]:
        rows, output = await act_out(actor, trajectory, agent, reflections)
        acted = output is not None and output.action is not None
        if acted and len(rows[-1].completion_ids) < len(trajectory.rows[-1].completion_ids):
            # The policy received the last observation, but had no tokens or time to respond.
            await actor.observe(trajectory.turns[-1].observation)
            rows = await actor.end()
        return rows

    return run_async(rows())


def _reflections(trajectory: Trajectory, kind: type[Agent], name: str) -> set[int]:
    """Indices of the turns that are reflections after a trial."""
    if kind.reflection is Agent.reflection:
        return set()
    if name != "reflect":
        raise RuleSkipped(f"the ends of the trials of {name} are not stored")
    ends, count = set(), 0
    for row in trajectory.rows[:-1]:
        count += len(row.turn_ends)
        ends.add(count - 1)
    return ends


def _stored(subject: AuditedModel) -> StoredRun:
    if subject.stored is None:
        raise RuleSkipped("the subject is a model, not a run")
    return subject.stored


def _episodes(stored: StoredRun) -> Iterator[tuple[str, Trajectory, float]]:
    """(place, episode, temperature) of all stored episodes."""
    config = stored.config
    for file, trajectories in stored.trajectories.items():
        heat = config.eval.temperature if file.startswith("eval") else config.temperature
        for line, trajectory in enumerate(trajectories, 1):
            yield f"{file}.jsonl, episode {line}", trajectory, heat


def _rows(where: str, trajectory: Trajectory) -> Iterator[tuple[str, Tokens]]:
    """(place, tokens) of each row of an episode."""
    for number, row in enumerate(trajectory.rows, 1):
        yield f"{where}, row {number}" if trajectory.further_rows else where, row


def _chat_of(subject: AuditedModel, stored: StoredRun, trajectory: Trajectory) -> Chat:
    """The chat of a stored episode's environment."""
    chat, with_tools = subject.require_chat(), bool(subject.template.tools)
    if not stored.config.envs and not with_tools:
        return chat
    tools = tools_of(trajectory.env) if with_tools else ()
    kept = subject.kept_reasoning or subject.settings.keep_reasoning
    return subject.chat_with(trajectory.instruction, tools, keep_reasoning=kept)


def _check_episode(
    subject: AuditedModel, stored: StoredRun, where: str, trajectory: Trajectory, chat: Chat
) -> None:
    """Raise `RuleFailed` unless ids and texts match, and agent and template give equal tokens."""
    if sum(len(row.turn_ends) for row in trajectory.rows) != len(trajectory.turns):
        raise RuleFailed(
            "its rows have another number of turns", _OTHER, ConversationDifference(where)
        )
    turns = iter(trajectory.turns)
    for name, row in _rows(where, trajectory):
        _check_texts(name, row, turns, chat)
    agent = stored.config.agent
    form = chat.form(format_of(agent, stored.config.action_format))
    try:
        rebuilt = tokenized_again(trajectory, chat, agent, form)
    except ConfigError as error:
        raise RuleFailed(str(error), _OTHER, ConversationDifference(where)) from error
    if len(rebuilt) != len(trajectory.rows):
        text = f"it has {len(trajectory.rows)} rows, but the agent creates {len(rebuilt)}"
        raise RuleFailed(text, _OTHER, ConversationDifference(where))
    for again, (name, row) in zip(rebuilt, _rows(where, trajectory), strict=True):
        for part in ("prompt", "completion"):
            expected, found = (getattr(each, f"{part}_ids") for each in (again, row))
            at = first_difference(expected, found)
            if at is not None:
                fact = f"a stored {part} differs from the tokens of the episode's texts"
                raise RuleFailed(fact, _OTHER, subject.place(name, at, expected, found))
        if (again.loss_mask, again.turn_ends) != (row.loss_mask, row.turn_ends):
            raise RuleFailed(
                "a stored mask does not match its turns", _OTHER, ConversationDifference(name)
            )


def _check_texts(name: str, row: Tokens, turns: Iterator[Turn], chat: Chat) -> None:
    """Raise `RuleFailed` unless the sampled ids of a row decode to the texts of the next turns."""
    spans, tokens = trained_spans(row.loss_mask), len(row.completion_ids)
    lengths = {len(row.loss_mask), len(row.logprobs), len(row.versions)}
    if lengths != {tokens} or len(spans) != len(row.turn_ends):
        raise RuleFailed("its lists have different lengths", _OTHER, ConversationDifference(name))
    for number, (start, end) in enumerate(spans, 1):
        ids, expected = row.completion_ids[start:end], next(turns).response
        found = chat.text_of(ids)
        if found != expected:
            place = replace(text_place(f"{name}, turn {number}", expected, found), token=start)
            raise RuleFailed("the ids of a stored turn decode to another text", _OTHER, place)


def _tolerance(subject: AuditedModel) -> float:
    chosen = subject.settings.tolerance
    usual = _AGREE if subject.model.dtype == torch.float32 else 0.5
    return usual if chosen is None else chosen


RULES: Mapping[str, Callable[[AuditedModel], RulePassed]] = {
    "stored episodes": stored_episodes,
    "stored log-probs": stored_logprobs,
}
