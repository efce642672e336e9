"""Rules about the stored episodes of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import ConfigError
from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.audit.rules import Drift, NotApplicable, Passed, Place, Rule
from agentgym_train.audit.rules import first_difference as difference
from agentgym_train.audit.subject import Stored, Subject
from agentgym_train.audit.token_rules import check_mask, check_separators, trained_spans
from agentgym_train.config.checks import Typed, type_of
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.data.tokenize import NO_LIMIT, act_out
from agentgym_train.engines.base import ScriptedEngine
from agentgym_train.event_loop import run_async
from agentgym_train.models.setup import evaluating
from agentgym_train.rollout.agent import Agent, agent_factory, format_of, is_black_box
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.model_actors import ModelActor


def tokenized_again(
    trajectory: Trajectory, chat: Chat, agent: Typed, form: ActionFormat
) -> list[Tokens]:
    """Rebuild the rows of an episode from its observations and the sampled ids of its turns.

    Only ids, masks and turn ends are set. Raises `NotApplicable` for a custom agent with several
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
        raise NotApplicable(f"the ends of the trials of {name} are not stored")
    ends, count = set(), 0
    for row in trajectory.rows[:-1]:
        count += len(row.turn_ends)
        ends.add(count - 1)
    return ends


_PLAIN = ("plain", "react", "act_only")
"""Agents that pass observations to the policy unchanged."""

_SCORED = 8
"""Number of stored rows whose log-probabilities are recomputed."""

_CHANGED = "the file or the agent was changed after the run; audit another run"

_AGREE = 1e-3
"""Tolerance of a stored log-probability: the run used other batches."""


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row of tokens of a stored episode."""

    name: str
    trajectory: Trajectory
    number: int
    """0 for the episode's first row."""
    turns: Sequence[Turn]
    """The turns that were sampled in the row."""
    tokens: Tokens
    temperature: float

    @property
    def prompt_ids(self) -> list[int]:
        """(P,) ids of the prompt."""
        return self.tokens.prompt_ids

    @property
    def completion_ids(self) -> list[int]:
        """(T,) ids of the completion."""
        return self.tokens.completion_ids

    @property
    def loss_mask(self) -> list[int]:
        """(T,) 1 for tokens that are trained on."""
        return self.tokens.loss_mask


def stored_tokens_are_the_episodes(subject: Subject) -> Passed:
    """Stored ids match the stored texts: prompts, masks, turn ends and texts between turns."""
    stored, chat = _stored(subject), subject.require_chat()
    if is_black_box(stored.config.agent):
        raise NotApplicable("the agent is a program of its own, whose requests are not stored")
    total = sum(map(len, stored.trajectories.values()))
    rows = list(_rows(stored))
    if not rows:
        raise NotApplicable(f"none of the {total} stored episodes has tokens")
    for row in rows:
        _check_shape(row)
        check_mask(row, row.turns, chat)
    rebuilt: list[Tokens] = []
    for row in rows:
        if row.number == 0:
            rebuilt = _rebuilt_rows(subject, stored.config, row)
        _check_ids(subject, rebuilt[row.number], row)
        if type_of(stored.config.agent) in _PLAIN:
            own, template = subject.view(row.trajectory, stored.config)
            form = own.form(subject.settings.form)
            check_separators(row, row.turns, own, template, subject.decode, form)
    episodes = sum(row.number == 0 for row in rows)
    without = total - episodes
    notes = []
    if without:
        notes.append(f"{without} of {total} stored episodes have no tokens and are not checked")
    text = f"{episodes} stored episodes"
    if len(rows) > episodes:
        text += f", in {len(rows)} rows because of context resets,"
    return Passed(f"{text} have the tokens of their texts", notes)


def stored_logprobs_are_the_models(subject: Subject) -> Passed:
    """The log-probabilities of stored episodes are those of the audited weights."""
    stored = _stored(subject)
    if stored.version is None:
        raise NotApplicable("the step of the audited weights is unknown")
    rows = [row for row in _rows(stored) if _versions(row) == {stored.version}][:_SCORED]
    if not rows:
        raise NotApplicable(f"no stored episode was sampled with weight version {stored.version}")
    worst, tokens = 0.0, 0
    for row in rows:
        found = _logprobs(subject, row)
        for at, (trained, a, b) in enumerate(
            zip(row.loss_mask, row.tokens.logprobs, found, strict=True)
        ):
            gap = abs(a - b) if math.isfinite(a - b) else math.inf
            if trained and gap > _tolerance(subject):
                token = row.completion_ids[at : at + 1]
                texts = (f"{subject.decode(token)} {p:.5f}" for p in (a, b))
                raise Drift(
                    f"a stored log-probability differs by {gap:.2g}",
                    "the episode was sampled with other weights, or at another temperature than "
                    "the run's",
                    Place(row.name, at, token, token, *texts),
                    largest=gap,
                )
            worst, tokens = max(worst, gap if trained else 0.0), tokens + trained
    text = f"{tokens} tokens of {len(rows)} stored episodes: largest difference {worst:.2g}"
    return Passed(text, figures={"tokens": tokens, "largest": worst})


def _stored(subject: Subject) -> Stored:
    if subject.stored is None:
        raise NotApplicable("the subject is a model, not a run")
    return subject.stored


def _rows(stored: Stored) -> Iterator[StoredRow]:
    for file, trajectories in stored.trajectories.items():
        config = stored.config
        heat = config.eval.temperature if file.startswith("eval") else config.temperature
        for line, trajectory in enumerate(trajectories, 1):
            first, where = 0, f"{file}.jsonl, episode {line}"
            for number, tokens in enumerate(trajectory.rows):
                is_last = number == len(trajectory.further_rows)
                # `_check_shape` reports turns beyond those of the last row.
                end = len(trajectory.turns) if is_last else first + len(tokens.turn_ends)
                turns = trajectory.turns[first:end]
                first = end
                name = where if not trajectory.further_rows else f"{where}, row {number + 1}"
                yield StoredRow(name, trajectory, number, turns, tokens, heat)


def _versions(row: StoredRow) -> set[int]:
    return {v for v, m in zip(row.tokens.versions, row.loss_mask, strict=True) if m}


def _check_shape(row: StoredRow) -> None:
    tokens = row.tokens
    lengths = {
        name: len(getattr(tokens, name))
        for name in ("completion_ids", "loss_mask", "logprobs", "versions")
    }
    if len(set(lengths.values())) > 1 or len(tokens.turn_ends) != len(row.turns):
        raise Drift(
            f"its lists have different lengths: {lengths}, {len(tokens.turn_ends)} turn ends, "
            f"{len(row.turns)} turns",
            _CHANGED,
            Place(row.name),
        )


def _rebuilt_rows(subject: Subject, config: RLConfig, row: StoredRow) -> list[Tokens]:
    """Rebuild the rows of an episode; raises `Drift` if their number differs."""
    chat, _ = subject.view(row.trajectory, config)
    form = chat.form(format_of(config.agent, config.action_format))
    try:
        rows = tokenized_again(row.trajectory, chat, config.agent, form)
    except ConfigError as error:
        raise Drift(str(error), _CHANGED, Place(row.name)) from error
    if len(rows) != len(row.trajectory.rows):
        raise Drift(
            f"it has {len(row.trajectory.rows)} rows, but the agent creates {len(rows)}",
            _CHANGED,
            Place(row.name),
        )
    return rows


def _check_ids(subject: Subject, rebuilt: Tokens, row: StoredRow) -> None:
    """Raise `Drift` unless the stored row equals the rebuilt one."""
    for name, expected, found in (
        ("prompt", rebuilt.prompt_ids, row.prompt_ids),
        ("completion", rebuilt.completion_ids, row.completion_ids),
    ):
        at = difference(expected, found)
        if at is not None:
            raise Drift(
                f"a stored {name} differs from the tokens of the episode's texts",
                "the run used another tokenizer, template, instruction or agent",
                subject.place(row.name, at, expected, found),
            )
    if (rebuilt.loss_mask, rebuilt.turn_ends) != (row.loss_mask, row.tokens.turn_ends):
        raise Drift("a stored mask does not match its turns", _CHANGED, Place(row.name))


def _tolerance(subject: Subject) -> float:
    chosen = subject.settings.tolerance
    usual = _AGREE if subject.model.dtype == torch.float32 else 0.5
    return usual if chosen is None else chosen


@torch.no_grad()
def _logprobs(subject: Subject, row: StoredRow) -> list[float]:
    """(T,) log-probabilities of the completion, at its sampling temperature."""
    model = subject.model
    ids = torch.tensor([row.prompt_ids + row.completion_ids], device=model.device)  # (1, P + T)
    with evaluating(model):
        logits = model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1]  # (T, V)
    logprobs = (logits.float() / (row.temperature or 1.0)).log_softmax(-1)  # (T, V)
    chosen = logprobs.gather(1, ids[0, len(row.prompt_ids) :, None]).squeeze(1)  # (T,)
    return chosen.tolist()


RULES: list[Rule[Subject]] = [
    Rule(
        "stored episodes",
        "The stored tokens are those of the stored episodes.",
        stored_tokens_are_the_episodes,
    ),
    Rule(
        "stored log-probs",
        "The stored probabilities are those of the audited weights.",
        stored_logprobs_are_the_models,
    ),
]
