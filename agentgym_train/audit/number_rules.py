"""Rules about numbers: log-probabilities, padding, and the rows of the embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from agentgym_train.audit.episodes import Row, Subject
from agentgym_train.audit.rules import Drift, NotApplicable, Passed, Place, Rule


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


RULES: list[Rule[Subject]] = [
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
