"""The rule about the stored episodes of a run: whether they still belong to its template and agent.

The first line of a rule's docstring is what it proves.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import ConfigError
from agentgym_env.trajectory import Tokens, Trajectory
from agentgym_train.audit.episodes import trained_spans
from agentgym_train.audit.rules import (
    ConversationDifference,
    RuleFailed,
    RuleResult,
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

_OTHER = (
    "the tokenizer, template, instruction or agent of the run, or its file, was changed since; "
    "restore it before training or evaluating with these episodes"
)


def stored_episodes(subject: AuditedModel) -> RuleResult:
    """The stored tokens are those of the stored episodes."""
    stored = subject.stored
    if stored is None:
        raise RuleSkipped("the subject is a model, not a run")
    if is_black_box(stored.config.agent):
        raise RuleSkipped("the agent is a program of its own, whose requests are not stored")
    total, rows, without = 0, 0, 0
    chats: dict[tuple[str, str], Chat] = {}
    for file, trajectories in stored.trajectories.items():
        for line, trajectory in enumerate(trajectories, 1):
            total, rows = total + 1, rows + len(trajectory.rows)
            without += not trajectory.rows
            key = trajectory.instruction, trajectory.env
            if trajectory.rows and key not in chats:
                chats[key] = _chat_of(subject, stored, trajectory)
            if trajectory.rows:
                where = f"{file}.jsonl, episode {line}"
                _check_episode(subject, stored, where, trajectory, chats[key])
    if not rows:
        raise RuleSkipped(f"none of the {total} stored episodes has tokens")
    text = f"{total - without} stored episodes"
    if rows > total - without:
        text += f", in {rows} rows because of context resets,"
    notes = [f"{without} of {total} stored episodes are not checked, without tokens or too old"]
    return RuleResult(f"{text} have the tokens of their texts", notes if without else ())


def tokenized_again(
    trajectory: Trajectory, chat: Chat, agent: Typed, form: ActionFormat
) -> list[Tokens]:
    """Rebuild the rows of an episode from its observations and the sampled ids of its turns.

    Only ids, masks and turn ends are set. Raises `RuleSkipped` for a custom agent with several
    trials per episode, because the ends of its trials are not stored.
    """
    responses = (
        row.completion_ids[start:end]
        for row in trajectory.rows
        for start, end in trained_spans(row.loss_mask)
    )
    config = PolicyConfig(
        turn_max_tokens=NO_LIMIT, max_tokens=NO_LIMIT, agent=agent, action_format=form.name
    )
    made = agent_factory(agent, form)()
    reflections = _reflections(trajectory, type(made), type_of(agent))
    engine = ScriptedEngine(lambda prompt, number: next(responses))
    actor = ModelActor(engine, chat, config, agent=made)

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
    here, agent = ConversationDifference(where), stored.config.agent
    turns = [turn for name, row in _rows(where, trajectory) for turn in _sampled(name, row)]
    if len(turns) != len(trajectory.turns):
        raise RuleFailed("its rows have another number of turns", _OTHER, here)
    for (name, ids), turn in zip(turns, trajectory.turns, strict=True):
        if (found := chat.text_of(ids)) != turn.response:
            place = text_place(name, turn.response, found)
            raise RuleFailed("the ids of a stored turn decode to another text", _OTHER, place)
    form = chat.form(format_of(agent, stored.config.action_format))
    try:
        rebuilt = tokenized_again(trajectory, chat, agent, form)
    except ConfigError as error:
        raise RuleFailed(str(error), _OTHER, here) from error
    if len(rebuilt) != len(trajectory.rows):
        text = f"it has {len(trajectory.rows)} rows, but the agent creates {len(rebuilt)}"
        raise RuleFailed(text, _OTHER, here)
    for again, (name, row) in zip(rebuilt, _rows(where, trajectory), strict=True):
        for part in ("prompt_ids", "completion_ids", "loss_mask", "turn_ends"):
            expected, found_ids = getattr(again, part), getattr(row, part)
            at = first_difference(expected, found_ids)
            if at is not None:
                place = ConversationDifference(name, at)
                if part.endswith("_ids"):
                    place = subject.place(name, at, expected, found_ids)
                fact = f"the stored {part} differ from those of the episode's texts"
                raise RuleFailed(fact, _OTHER, place)


def _rows(where: str, trajectory: Trajectory) -> Iterator[tuple[str, Tokens]]:
    """(place, tokens) of each row of an episode."""
    for number, row in enumerate(trajectory.rows, 1):
        yield f"{where}, row {number}" if trajectory.further_rows else where, row


def _sampled(name: str, row: Tokens) -> Iterator[tuple[str, list[int]]]:
    """(place, ids) of each turn of a row, whose lists must have one value per token."""
    lists = (row.completion_ids, row.loss_mask, row.logprobs, row.versions)
    if len({len(each) for each in lists}) > 1:
        raise RuleFailed("its lists have different lengths", _OTHER, ConversationDifference(name))
    for number, (start, end) in enumerate(trained_spans(row.loss_mask), 1):
        yield f"{name}, turn {number}", row.completion_ids[start:end]
