"""Rules about ids and masks: what the engine sampled, and the rows the trainer learns from."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from agentgym_env.trajectory import Turn
from agentgym_train.audit.episodes import Row, Subject
from agentgym_train.audit.rules import (
    Drift,
    NotApplicable,
    Passed,
    Place,
    Rule,
    Template,
    text_place,
)
from agentgym_train.audit.rules import first_difference as difference
from agentgym_train.engines.base import Generation, Sampling
from agentgym_train.rollout.chat import Chat
from agentgym_train.trainers.batch import token_batch


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What rounding alone can do to log-probabilities."""

    token: float
    """Of one token; a small share may be off by more."""
    share: float
    """Of the tokens: rounding is coarse where a token is unlikely or a policy sharp."""
    most: float
    """Of any token, as a multiple of `token`."""


_FULL = Tolerance(1e-4, 0.001, 10)

_HALF = Tolerance(2e-2, 0.05, 50)

"""Where anything is computed in 16 bits."""

_PADDED_ROWS = 4

_LEFT, _RIGHT = 7, 5


def engine_and_trainer_agree(subject: Subject) -> Passed:
    """The engine's log-probability of every sampled token is the trainer's."""
    rows = subject.episodes.sampled
    allowed = _tolerance(subject)
    gaps = [(row, at, gap) for row in rows for at, gap in _gaps(row)]
    if not gaps:
        raise NotApplicable("no token was sampled")
    worst = max(gaps, key=lambda found: _size(found[2]))
    sizes = [_size(gap) for _, _, gap in gaps]
    share = sum(size > allowed.token for size in sizes) / len(sizes)
    figures = {
        "tokens": len(sizes),
        "max": max(sizes),
        "mean": sum(sizes) / len(sizes),
        "share_above": share,
        "tolerance": allowed.token,
        "kl_k3": sum(math.expm1(gap) - gap for _, _, gap in gaps) / len(gaps),
    }
    text = (
        f"{len(sizes)} tokens: largest difference {figures['max']:.2g}, mean "
        f"{figures['mean']:.2g}, {share:.1%} above {allowed.token:g}, KL {figures['kl_k3']:.2g}"
    )
    if share > allowed.share or not figures["max"] <= allowed.most * allowed.token:
        raise Drift(
            f"engine and trainer disagree on {text}",
            _whose_fault(subject, worst[0], worst[1], allowed.token),
            _logprob_place(subject, worst[0], worst[1]),
            **figures,
        )
    return Passed(f"{text}; largest at {_where(*worst[:2])}, token {worst[1]}", figures=figures)


def padding_changes_nothing(subject: Subject) -> Passed:
    """Columns of padding, left or right, and what stands in them, change no log-probability."""
    tolerance = _tolerance(subject).token
    rows = subject.episodes.rows[:_PADDED_ROWS]
    dummy_rows = {"the pad token": int(subject.tokenizer.pad_token_id), "another token": 0}
    worst, implicit = 0.0, 0.0
    for row in rows:
        alone = _scores(subject.model, row.ids, 0, 0, 0)
        for name, dummy_row in dummy_rows.items():
            for left, right in ((0, _RIGHT), (_LEFT, 0), (_LEFT, _RIGHT)):
                padded = _scores(subject.model, row.ids, left, right, dummy_row)
                gap = float((padded - alone).abs().max())
                if not gap <= tolerance:
                    at = int((padded - alone).abs().nan_to_num(math.inf).argmax())
                    raise Drift(
                        f"{left} columns of padding left and {right} right, filled with {name}, "
                        f"change a log-probability by {gap:.2g}",
                        "the model looks at padding: see how it reads attention_mask and "
                        "position_ids, or train one episode a row",
                        Place(row.name, at + 1, (), row.ids[at + 1 : at + 2]),
                        largest=gap,
                    )
                worst = max(worst, gap)
        counted = _scores(subject.model, row.ids, _LEFT, 0, 0, positions=False)
        implicit = max(implicit, float((counted - alone).abs().max()))
    notes = []
    if not implicit <= tolerance:
        notes.append(
            f"without position_ids, padding on the left changes a log-probability by {implicit:.2g}"
        )
    figures = {"largest": worst, "without_position_ids": implicit}
    return Passed(f"{len(rows)} episodes padded 6 ways: at most {worst:.2g}", notes, figures)


def pad_token_is_sane(subject: Subject) -> Passed:
    """Padding is a token that nobody says, or one whose meaning does not matter."""
    pad, control = subject.tokenizer.pad_token_id, subject.template.control_tokens()
    if pad is None:
        raise Drift("the tokenizer has no pad token", "set tokenizer.pad_token")
    added = subject.tokenizer.added_tokens_decoder.get(pad)
    if added is None or not added.special:
        raise Drift(
            f"the pad token {subject.decode([pad])!r} (id {pad}) is an ordinary token",
            "set tokenizer.pad_token to a special token; TRL takes a completion that ends with it "
            "for one that ended by itself",
        )
    notes = []
    chat = subject.chat
    if chat is not None and pad in chat.stop_ids:
        text = "it also ends a turn, which does no harm: masks come from lengths, not from ids"
        notes.append(text)
    return Passed(f"{control[pad]} ({pad})", notes)


def embeddings_hold_the_vocabulary(subject: Subject) -> Passed:
    """Every id of the tokenizer has a row in the model, and the head as many as the input."""
    model, size = subject.model, len(subject.tokenizer)
    rows = int(model.get_input_embeddings().weight.shape[0])
    head = model.get_output_embeddings()
    columns = rows if head is None else int(head.weight.shape[0])
    known = max([*subject.tokenizer.get_vocab().values(), size - 1])
    if known >= min(rows, columns):
        raise Drift(
            f"the tokenizer has ids up to {known}, the model {rows} embeddings and {columns} "
            "logits",
            "model.resize_token_embeddings(len(tokenizer)), then save both again",
        )
    tied = head is not None and head.weight is model.get_input_embeddings().weight
    notes = []
    if columns > known + 1:
        notes.append(f"{columns - known - 1} logits belong to no token; sampled, they are no text")
    figures = {"tokens": size, "embeddings": rows, "logits": columns, "tied": tied}
    text = f"{size} tokens, {rows} embeddings, {columns} logits, {'tied' if tied else 'untied'}"
    return Passed(text, notes, figures)


def _whose_fault(subject: Subject, row: Row, at: int, tolerance: float) -> str:
    """What to do, by which side a plain forward of the episode alone agrees with."""
    heat = subject.settings.temperature
    scores = _scores(subject.model, row.ids, 0, 0, 0, temperature=heat)  # (P + T - 1,)
    alone = float(scores[len(row.prompt_ids) - 1 + at])
    engine = _size(row.engine_logprobs[at] - alone) <= tolerance
    trainer = _size(row.trainer_logprobs[at] - alone) <= tolerance
    told = f"a plain forward of the episode alone gives {alone:.6f}: "
    if engine and not trainer:
        told += "the trainer is off. Turn off dropout in the model's config; if there is none, "
        return told + "positions or masks go wrong where episodes share a batch"
    if trainer and not engine:
        told += "the engine is off. Its cache, its attention window or its precision is another; "
        return told + "use another engine, or another attention implementation"
    return told + "both are off. Give engine and trainer one precision, and turn off dropout"


def _tolerance(subject: Subject) -> Tolerance:
    arguments = subject.episodes.trainer.args
    halved = subject.model.dtype != torch.float32 or arguments.bf16 or arguments.fp16
    usual = _HALF if halved else _FULL
    chosen = subject.settings.tolerance
    return usual if chosen is None else replace(usual, token=chosen)


def _gaps(row: Row) -> list[tuple[int, float]]:
    """(index, trainer's minus engine's log-probability) of every trained token."""
    both = zip(row.loss_mask, row.engine_logprobs, row.trainer_logprobs, strict=True)
    return [(at, theirs - ours) for at, (trained, ours, theirs) in enumerate(both) if trained]


def _size(gap: float) -> float:
    return abs(gap) if math.isfinite(gap) else math.inf


def _where(row: Row, at: int) -> str:
    ends = row.trajectory.tokens.turn_ends if row.trajectory.tokens else []
    turn = sum(end <= at for end in ends) + 1
    return f"{row.name}, turn {turn}"


def _logprob_place(subject: Subject, row: Row, at: int) -> Place:
    token = row.completion_ids[at]
    ours, theirs = row.engine_logprobs[at], row.trainer_logprobs[at]
    text = subject.decode([token])
    return Place(
        _where(row, at), at, [token], [token], f"{text} engine {ours:.6f}",
        f"{text} trainer {theirs:.6f}",
    )  # fmt: skip


@torch.no_grad()
def _scores(
    model: Any,
    ids: Sequence[int],
    left: int,
    right: int,
    dummy_row: int,
    *,
    positions: bool = True,
    temperature: float = 1.0,
) -> Tensor:
    """(n - 1,) log-probability of each id after the first, the row being padded on both sides."""
    device = next(model.parameters()).device
    row = torch.tensor(
        [[dummy_row] * left + list(ids) + [dummy_row] * right], device=device
    )  # (1, W)
    mask = torch.zeros_like(row)  # (1, W)
    mask[:, left : left + len(ids)] = 1
    extra = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if positions else {}
    was_training = model.training
    model.eval()
    try:
        logits = model(input_ids=row, attention_mask=mask, **extra).logits[0]  # (W, V)
    finally:
        model.train(was_training)
    real = logits[left : left + len(ids) - 1].float() / temperature  # (n - 1, V)
    real = real.log_softmax(-1)  # (n - 1, V)
    return real.gather(1, row[0, left + 1 : left + len(ids), None]).squeeze(1)  # (n - 1,)


NUMBER_RULES: list[Rule[Subject]] = [
    Rule(
        "log-probs",
        "The trainer's probability of every sampled token is the one it was sampled with.",
        engine_and_trainer_agree,
    ),
    Rule(
        "padding",
        "An episode scores the same alone and among longer ones.",
        padding_changes_nothing,
    ),
    Rule("pad token", "Padding can be told from what a policy says.", pad_token_is_sane),
    Rule(
        "vocabulary",
        "Every token has an embedding and a logit.",
        embeddings_hold_the_vocabulary,
    ),
]

Decode = Callable[[Sequence[int]], str]

_MASK = "report it with the model's name: the loss mask is agentgym's own"

_BETWEEN = "report it with the template: chat.py writes what stands between turns"


class Ids(Protocol):
    """The ids of an episode and which of them are trained on."""

    @property
    def name(self) -> str:
        """What a message calls it."""
        ...

    @property
    def completion_ids(self) -> list[int]:
        """(T,)."""
        ...

    @property
    def loss_mask(self) -> list[int]:
        """(T,) 1 where it is trained on."""
        ...


def trained_spans(loss_mask: Sequence[int]) -> list[tuple[int, int]]:
    """(start, end) of every stretch that is trained on."""
    spans, at = [], 0
    for trained, run in groupby(loss_mask):
        length = len(list(run))
        if trained:
            spans.append((at, at + length))
        at += length
    return spans


def check_mask(
    row: Ids, turns: Sequence[Turn], chat: Chat, decode: Decode
) -> list[tuple[int, int]]:
    """The trained spans; raises `Drift` unless they are the turns' texts and nothing else."""
    spans = trained_spans(row.loss_mask)
    if len(spans) != len(turns):
        raise Drift(
            f"{len(turns)} turns were played and {len(spans)} spans are trained on",
            _MASK,
            Place(row.name),
        )
    for number, ((start, end), turn) in enumerate(zip(spans, turns, strict=True), 1):
        span = row.completion_ids[start:end]
        ended = span[-1] in chat.stop_ids
        expected = turn.response + (decode(span[-1:]) if ended else "")
        found = decode(span)
        if found != expected:
            place = text_place(f"{row.name}, turn {number}", expected, found)
            raise Drift(
                "what is trained on is not what the policy said",
                _MASK,
                Place(place.where, start, (), span[:6], place.expected, place.found),
            )
    return spans


def check_separators(
    row: Ids, turns: Sequence[Turn], chat: Chat, template: Template, decode: Decode
) -> int:
    """How many places between turns were read; raises `Drift` at one that is not the template's."""
    spans = trained_spans(row.loss_mask)
    end_text = decode([chat.end_id])
    for number, ((_, end), (start, _)) in enumerate(pairwise(spans), 1):
        between = row.completion_ids[end:start]
        expected = template.after_reply(turns[number - 1].observation)
        if row.completion_ids[end - 1] == chat.end_id:
            expected = expected.removeprefix(end_text)
        found = decode(between)
        if found != expected:
            place = text_place(f"{row.name}, after turn {number}", expected, found)
            raise Drift(
                "what stands between two turns is not what the template writes there",
                _BETWEEN,
                Place(place.where, end, (), between[:6], place.expected, place.found),
            )
    return max(0, len(spans) - 1)


_OURS = "report it with the model's name: this is agentgym's own bookkeeping"

_ENGINE = "use another engine for this model, or report it with the model's name"

_PROBE_TOKENS = 8


def episodes_are_played(subject: Subject) -> Passed:
    """Every episode comes back from the trainer, with at least one turn."""
    subject.require_chat()
    rows = subject.played.rows
    silent = [row.name for row in rows if not row.trajectory.turns]
    if len(silent) == len(rows):
        raise Drift(
            "no episode had a turn: the first prompt leaves no room",
            f"raise max_tokens above {max(len(row.prompt_ids) for row in rows)}",
        )
    turns = [row.trajectory.turns for row in rows]
    outcomes = Counter(row.trajectory.outcome for row in rows)
    ends = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    cut = sum(e.finish_reason == "length" for row in rows for e in row.exchanges)
    empty = sum(turn.response == "" for played in turns for turn in played)
    sampled = sum(sum(row.loss_mask) for row in rows)
    notes = [f"{len(silent)} episodes had no room for a turn"] if silent else []
    figures = {"episodes": len(rows), "turns": sum(map(len, turns)), "trained_tokens": sampled}
    return Passed(
        f"{len(rows)} episodes ({ends}), {figures['turns']} turns, {cut} of them cut short, "
        f"{empty} empty, {sampled} trained tokens",
        notes,
        figures,
    )


def generation_stops(subject: Subject) -> Passed:
    """Asked to stop at an id, the engine stops there, keeps it and says so."""
    episodes = subject.episodes
    for row in episodes.sampled:
        for turn, exchange in enumerate(row.exchanges, 1):
            ids, stops = exchange.token_ids, set(exchange.stop_ids)
            early = next((i for i, number in enumerate(ids[:-1]) if number in stops), None)
            ended = bool(ids) and ids[-1] in stops
            reason = "stop" if ended else "length"
            if early is not None:
                place = subject.place(f"{row.name}, turn {turn}", early, ids[: early + 1], ids)
                raise Drift("the engine went on after a stop token", _ENGINE, place)
            if reason != exchange.finish_reason or len(ids) > exchange.max_tokens:
                raise Drift(
                    f"a turn of {len(ids)} tokens (most: {exchange.max_tokens}) that "
                    f"{'ends' if ended else 'does not end'} with a stop token came back as "
                    f"{exchange.finish_reason!r}",
                    _ENGINE,
                    Place(f"{row.name}, turn {turn}", None, (), ids[-6:]),
                )
    prompt = episodes.rows[0].prompt_ids
    free = _sample(subject, prompt, ()).token_ids
    if not free:
        raise Drift("the engine gives no token where none stops it", _ENGINE)
    stop = free[len(free) // 2]
    expected = free[: free.index(stop) + 1]
    found = _sample(subject, prompt, (stop,))
    at = difference(expected, found.token_ids)
    if at is not None or found.finish_reason != "stop":
        place = subject.place("a greedy turn", at or 0, expected, found.token_ids)
        raise Drift(f"the engine does not stop at id {stop} when asked to", _ENGINE, place)
    ends = sum(e.finish_reason == "stop" for row in episodes.sampled for e in row.exchanges)
    return Passed(f"it stops where it is asked to; {ends} sampled turns ended themselves")


def _sample(subject: Subject, prompt: list[int], stops: tuple[int, ...]) -> Generation:
    sampling = Sampling(_PROBE_TOKENS, temperature=0.0, stop_ids=stops)
    return asyncio.run(subject.engine.generate(prompt, sampling))


def sampled_ids_are_trained(subject: Subject) -> Passed:
    """The rows hold the engine's ids at the turns' places, with its log-probabilities."""
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
                    f"the engine's log-probabilities do not reach the trainer ({worst:.2g} off)",
                    _OURS,
                    Place(where),
                )
            count += len(exchange.token_ids)
        if sum(row.loss_mask) != sum(len(e.token_ids) for e in row.exchanges):
            raise Drift(
                f"{sum(row.loss_mask)} tokens are trained on, "
                f"{sum(len(e.token_ids) for e in row.exchanges)} were sampled",
                _OURS,
                Place(row.name),
            )
    return Passed(f"{count} ids, each where it was sampled, with its log-probability")


def context_is_the_same(subject: Subject) -> Passed:
    """What the trainer reads before a turn is what the engine sampled it after."""
    turns = 0
    for row in subject.episodes.rows:
        for turn, exchange in enumerate(row.exchanges, 1):
            found = row.ids[: len(exchange.prompt_ids)]
            at = difference(exchange.prompt_ids, found)
            if at is not None:
                place = subject.place(f"{row.name}, turn {turn}", at, exchange.prompt_ids, found)
                raise Drift("the trainer reads another context than the engine did", _OURS, place)
            turns += 1
    return Passed(f"{turns} turns were sampled after exactly what the trainer reads")


def mask_is_the_policys_text(subject: Subject) -> Passed:
    """The trained spans decode to the policy's texts, with the end token where one was sampled."""
    chat, spans, ends = subject.require_chat(), 0, 0
    for row in subject.episodes.rows:
        found = check_mask(row, row.trajectory.turns, chat, subject.decode)
        spans += len(found)
        ends += sum(row.completion_ids[end - 1] in chat.stop_ids for _, end in found)
    return Passed(f"{spans} trained spans read as their turns; {ends} end tokens are trained on")


def separators_stand_once(subject: Subject) -> Passed:
    """Between two turns stands what the template writes there, once."""
    chat = subject.require_chat()
    between = sum(
        check_separators(row, row.trajectory.turns, chat, subject.template, subject.decode)
        for row in subject.episodes.rows
    )
    if not between:
        raise NotApplicable("no episode had two turns; raise --turns")
    return Passed(f"{between} places between turns read as the template writes them")


def batch_has_the_same_rows(subject: Subject) -> Passed:
    """The tensors of the algorithms agree with TRL's, row by row."""
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
            raise Drift("the advantages' mask is not the loss's", _OURS, place)
        base = len(row.exchanges[0].prompt_ids) if row.exchanges else 0
        ends = [len(e.prompt_ids) - base + len(e.token_ids) for e in row.exchanges]
        found = batch.turn_ends[number, : len(ends)].tolist()
        if ends != found:
            raise Drift(
                "a turn's reward would be put to another turn's token",
                _OURS,
                Place(row.name, None, ends, found),
            )
    return Passed(f"{len(rows)} rows of at most {width} tokens, each turn with its own reward")


RULES: list[Rule[Subject]] = [
    Rule(
        "episodes",
        "The model plays through agentgym's rollout, engine and trainer.",
        episodes_are_played,
    ),
    Rule("stopping", "Generation ends at the end of a turn, not behind it.", generation_stops),
    Rule(
        "sampled ids",
        "The trained ids are the sampled ids: nothing is tokenised a second time.",
        sampled_ids_are_trained,
    ),
    Rule(
        "same context",
        "Each turn is trained after exactly the ids it was sampled after.",
        context_is_the_same,
    ),
    Rule(
        "loss mask",
        "The policy's own words are trained on, its end tokens too, and nothing else.",
        mask_is_the_policys_text,
    ),
    Rule(
        "separators",
        "No end of turn or line break between turns is lost or doubled.",
        separators_stand_once,
    ),
    Rule(
        "batch",
        "Rewards and advantages reach the tokens of their own turn.",
        batch_has_the_same_rows,
    ),
]
