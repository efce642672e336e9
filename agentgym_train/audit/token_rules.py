"""Rules about ids and masks: the engine's samples and the trainer's rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Protocol

from agentgym_env.actions import ActionFormat
from agentgym_env.trajectory import Turn
from agentgym_train.audit.rules import Drift, NotApplicable, Passed, Place, Rule, text_place
from agentgym_train.audit.rules import first_difference as difference
from agentgym_train.audit.subject import Subject
from agentgym_train.audit.template import Template
from agentgym_train.engines.base import Generation, Sampling
from agentgym_train.event_loop import run_async
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.tool_calls import ToolCalls, ToolResult
from agentgym_train.training.batch import token_batch

Decode = Callable[[Sequence[int]], str]

_MASK = "report a bug in agentgym's loss mask with the model's name"

_BETWEEN = "report a bug in chat.py with the template"


class Ids(Protocol):
    """The ids of an episode and which of them are trained on."""

    @property
    def name(self) -> str:
        """Name of the episode in messages."""
        ...

    @property
    def completion_ids(self) -> list[int]:
        """(T,) ids of the completion."""
        ...

    @property
    def loss_mask(self) -> list[int]:
        """(T,) 1 for tokens that are trained on."""
        ...


def trained_spans(loss_mask: Sequence[int]) -> list[tuple[int, int]]:
    """(start, end) of every span that is trained on."""
    spans, at = [], 0
    for trained, run in groupby(loss_mask):
        length = len(list(run))
        if trained:
            spans.append((at, at + length))
        at += length
    return spans


def check_mask(row: Ids, turns: Sequence[Turn], chat: Chat) -> list[tuple[int, int]]:
    """The trained spans; raises `Drift` unless they are exactly the turns' texts."""
    spans = trained_spans(row.loss_mask)
    if len(spans) != len(turns):
        raise Drift(
            f"there are {len(turns)} turns, but {len(spans)} spans are trained on",
            _MASK,
            Place(row.name),
        )
    for number, ((start, end), turn) in enumerate(zip(spans, turns, strict=True), 1):
        span = row.completion_ids[start:end]
        found = chat.text_of(span)
        if found != turn.response:
            place = text_place(f"{row.name}, turn {number}", turn.response, found)
            raise Drift(
                "a trained span is not the policy's response",
                _MASK,
                Place(place.where, start, (), span[:6], place.expected, place.found),
            )
    return spans


def check_separators(
    row: Ids,
    turns: Sequence[Turn],
    chat: Chat,
    template: Template,
    decode: Decode,
    form: ActionFormat,
) -> int:
    """Compare the texts between turns with the template and return their number; raises `Drift`."""
    spans = trained_spans(row.loss_mask)
    for number, ((_, end), (start, _)) in enumerate(pairwise(spans), 1):
        between = row.completion_ids[end:start]
        turn = turns[number - 1]
        expected = template.after_reply(turn.observation, results_of(turn, form))
        ids = template.ids(expected)
        if len(chat.without_end(row.completion_ids[:end], ids)) < len(ids):
            expected = expected.removeprefix(decode(ids[:1]))
        found = decode(between)
        if found != expected:
            place = text_place(f"{row.name}, after turn {number}", expected, found)
            raise Drift(
                "the text between two turns differs from the template's",
                _BETWEEN,
                Place(place.where, end, (), between[:6], place.expected, place.found),
            )
    return max(0, len(spans) - 1)


def results_of(turn: Turn, form: ActionFormat) -> list[ToolResult]:
    """What a turn's calls were answered; empty without tool calls."""
    calls = form.parse(turn.response) if form.name == "tools" else None
    if not isinstance(calls, ToolCalls):
        return []
    made = turn.info.get("calls", [{"observation": turn.observation}])
    given = zip(calls.calls, made, strict=False)
    return [ToolResult(call.name, row["observation"]) for call, row in given]


_OURS = "report a bug in agentgym with the model's name"

_ENGINE = "use another engine for this model, or report a bug with the model's name"

_PROBE_TOKENS = 8


def episodes_are_played(subject: Subject) -> Passed:
    """The trainer returns every episode, and at least one has a turn."""
    subject.require_chat()
    rows = subject.played.rows
    silent = [row.name for row in rows if not row.trajectory.turns]
    if len(silent) == len(rows):
        raise Drift(
            "no episode had a turn: the first prompt exceeds the token budget",
            f"raise max_tokens above {max(len(row.prompt_ids) for row in rows)}",
        )
    turns = [row.trajectory.turns for row in rows]
    outcomes = Counter(row.trajectory.outcome for row in rows)
    ends = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    cut = sum(e.finish_reason == "length" for row in rows for e in row.exchanges)
    empty = sum(turn.response == "" for played in turns for turn in played)
    sampled = sum(sum(row.loss_mask) for row in rows)
    notes = [f"{len(silent)} episodes had no tokens left for a turn"] if silent else []
    figures = {"episodes": len(rows), "turns": sum(map(len, turns)), "trained_tokens": sampled}
    return Passed(
        f"{len(rows)} episodes ({ends}), {figures['turns']} turns, {cut} of them truncated, "
        f"{empty} empty, {sampled} trained tokens",
        notes,
        figures,
    )


def generation_stops(subject: Subject) -> Passed:
    """The engine stops at stop ids, returns them, and reports the finish reason."""
    episodes = subject.episodes
    for row in episodes.sampled:
        for turn, exchange in enumerate(row.exchanges, 1):
            ids, stops = exchange.token_ids, set(exchange.stop_ids)
            early = next((i for i, number in enumerate(ids[:-1]) if number in stops), None)
            ended = bool(ids) and ids[-1] in stops
            reason = "stop" if ended else "length"
            if early is not None:
                place = subject.place(f"{row.name}, turn {turn}", early, ids[: early + 1], ids)
                raise Drift("the engine continued after a stop token", _ENGINE, place)
            if reason != exchange.finish_reason or len(ids) > exchange.max_tokens:
                raise Drift(
                    f"a turn of {len(ids)} tokens (maximum: {exchange.max_tokens}) that "
                    f"{'ends' if ended else 'does not end'} with a stop token has the finish "
                    f"reason {exchange.finish_reason!r}",
                    _ENGINE,
                    Place(f"{row.name}, turn {turn}", None, (), ids[-6:]),
                )
    prompt = episodes.rows[0].prompt_ids
    free = _sample(subject, prompt, ()).token_ids
    if not free:
        raise Drift("the engine returns no token without stop ids", _ENGINE)
    stop = free[len(free) // 2]
    expected = free[: free.index(stop) + 1]
    found = _sample(subject, prompt, (stop,))
    at = difference(expected, found.token_ids)
    if at is not None or found.finish_reason != "stop":
        place = subject.place("a greedy turn", at or 0, expected, found.token_ids)
        raise Drift(f"the engine does not stop at the stop id {stop}", _ENGINE, place)
    ends = sum(e.finish_reason == "stop" for row in episodes.sampled for e in row.exchanges)
    return Passed(f"the engine stops at stop ids; {ends} sampled turns ended with one")


def _sample(subject: Subject, prompt: list[int], stops: tuple[int, ...]) -> Generation:
    sampling = Sampling(_PROBE_TOKENS, temperature=0.0, stop_ids=stops)
    return run_async(subject.engine.generate(prompt, sampling))


def sampled_ids_are_trained(subject: Subject) -> Passed:
    """The rows contain the engine's ids and log-probabilities at the positions of the turns."""
    count = 0
    for row in subject.episodes.rows:
        base = len(row.exchanges[0].prompt_ids) if row.exchanges else 0
        for turn, exchange in enumerate(row.exchanges, 1):
            start = len(exchange.prompt_ids) - base
            end = start + len(exchange.token_ids)
            where = f"{row.name}, turn {turn}"
            found = row.completion_ids[start:end]
            at = difference(exchange.token_ids, found)
            if at is not None:
                place = subject.place(where, at, exchange.token_ids, found)
                raise Drift("the trained ids are not the sampled ones", _OURS, place)
            trained = row.loss_mask[start:end]
            if 0 in trained:
                place = subject.place(where, trained.index(0), exchange.token_ids, ())
                raise Drift("a sampled token is not trained on", _OURS, place)
            given = zip(exchange.logprobs, row.engine_logprobs[start:end], strict=False)
            worst = max((abs(a - b) for a, b in given), default=0.0)
            if len(exchange.logprobs) != len(exchange.token_ids) or worst > 1e-6:
                raise Drift(
                    f"the trainer's copy of the engine's log-probabilities differs by {worst:.2g}",
                    _OURS,
                    Place(where),
                )
            count += len(exchange.token_ids)
        if sum(row.loss_mask) != sum(len(e.token_ids) for e in row.exchanges):
            raise Drift(
                f"{sum(row.loss_mask)} tokens are trained on, but "
                f"{sum(len(e.token_ids) for e in row.exchanges)} were sampled",
                _OURS,
                Place(row.name),
            )
    return Passed(f"{count} sampled ids and log-probabilities are trained on")


def context_is_the_same(subject: Subject) -> Passed:
    """The trainer's context before a turn equals the engine's prompt."""
    turns = 0
    for row in subject.episodes.rows:
        for turn, exchange in enumerate(row.exchanges, 1):
            found = row.ids[: len(exchange.prompt_ids)]
            at = difference(exchange.prompt_ids, found)
            if at is not None:
                place = subject.place(f"{row.name}, turn {turn}", at, exchange.prompt_ids, found)
                raise Drift("the trainer's context differs from the engine's", _OURS, place)
            turns += 1
    return Passed(f"{turns} turns have the same context in engine and trainer")


def mask_is_the_policys_text(subject: Subject) -> Passed:
    """The trained spans decode to the policy's responses, with sampled end tokens."""
    chat, spans, ends = subject.require_chat(), 0, 0
    for row in subject.episodes.rows:
        found = check_mask(row, row.trajectory.turns, chat)
        spans += len(found)
        ends += sum(row.completion_ids[end - 1] in chat.stop_ids for _, end in found)
    return Passed(f"{spans} trained spans equal their turns; {ends} end tokens are trained on")


def separators_stand_once(subject: Subject) -> Passed:
    """The text between two turns is the template's."""
    chat = subject.require_chat()
    between = sum(
        check_separators(
            row, row.trajectory.turns, chat, subject.template, subject.decode, subject.form
        )
        for row in subject.episodes.rows
    )
    if not between:
        raise NotApplicable("no episode had two turns; increase --turns")
    return Passed(f"{between} texts between turns equal the template's")


def batch_has_the_same_rows(subject: Subject) -> Passed:
    """The tensors of the algorithms agree with TRL's in every row."""
    episodes = subject.episodes
    rows = episodes.rows
    width = max(len(row.completion_ids) for row in rows)
    dummy_row = int(subject.tokenizer.pad_token_id)
    trajectories = [row.trajectory for row in rows]
    batch = token_batch(trajectories, episodes.group_size, width, dummy_row)
    for number, row in enumerate(rows):
        end = len(row.completion_ids)
        mask = [int(x) for x in batch.loss_mask[number].tolist()]
        at = difference(row.loss_mask + [0] * (width - end), mask)
        if at is not None:
            place = subject.place(row.name, at, row.completion_ids, row.completion_ids)
            raise Drift("the mask of the advantages differs from the loss mask", _OURS, place)
        base = len(row.exchanges[0].prompt_ids) if row.exchanges else 0
        ends = [len(e.prompt_ids) - base + len(e.token_ids) for e in row.exchanges]
        found = batch.turn_ends[number, : len(ends)].tolist()
        if ends != found:
            raise Drift(
                "a turn's reward would be assigned to another turn's token",
                _OURS,
                Place(row.name, None, ends, found),
            )
    return Passed(f"{len(rows)} rows of at most {width} tokens, each turn with its reward")


RULES: list[Rule[Subject]] = [
    Rule(
        "episodes",
        "The model works with agentgym's rollout, engine and trainer.",
        episodes_are_played,
    ),
    Rule("stopping", "Generation stops at the end of a turn.", generation_stops),
    Rule(
        "sampled ids",
        "The trained ids are the sampled ids: nothing is tokenized a second time.",
        sampled_ids_are_trained,
    ),
    Rule(
        "same context",
        "Each turn has the same context in training and in sampling.",
        context_is_the_same,
    ),
    Rule(
        "loss mask",
        "The policy's responses and end tokens are trained on, and nothing else.",
        mask_is_the_policys_text,
    ),
    Rule(
        "separators",
        "No end token or line break between turns is missing or repeated.",
        separators_stand_once,
    ),
    Rule(
        "batch",
        "Rewards and advantages are assigned to the tokens of their turn.",
        batch_has_the_same_rows,
    ),
]
