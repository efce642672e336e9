"""Rules about log-probabilities, padding, embeddings and positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from agentgym_train.audit.episodes import Row
from agentgym_train.audit.rules import Drift, NotApplicable, Passed, Place, Rule
from agentgym_train.audit.subject import Subject
from agentgym_train.models.positions import positions_of
from agentgym_train.models.setup import evaluating
from agentgym_train.training.agreement import FULL, HALF, Agreement, Tolerance

_PADDED_ROWS = 4

_LEFT, _RIGHT = 7, 5


def engine_and_trainer_agree(subject: Subject) -> Passed:
    """Engine and trainer compute the same log-probabilities of the sampled tokens."""
    rows = subject.episodes.sampled
    allowed = _tolerance(subject)
    gaps = [(row, at, gap) for row in rows for at, gap in _gaps(row)]
    if not gaps:
        raise NotApplicable("no token was sampled")
    worst = max(gaps, key=lambda found: _size(found[2]))
    agreement = Agreement.of([gap for _, _, gap in gaps], allowed)
    figures = {
        "tokens": len(gaps),
        "max": agreement.most,
        "mean": agreement.mean,
        "share_above": agreement.share_above,
        "tolerance": allowed.token,
        "kl_k3": sum(math.expm1(gap) - gap for _, _, gap in gaps) / len(gaps),
    }
    text = (
        f"{len(gaps)} tokens: largest difference {agreement.most:.2g}, mean {agreement.mean:.2g}, "
        f"{agreement.share_above:.1%} above {allowed.token:g}, KL {figures['kl_k3']:.2g}"
    )
    if not agreement.holds:
        raise Drift(
            f"engine and trainer differ on {text}",
            _whose_fault(subject, worst[0], worst[1], allowed.token),
            _logprob_place(subject, worst[0], worst[1]),
            **figures,
        )
    return Passed(f"{text}; largest at {_where(*worst[:2])}, token {worst[1]}", figures=figures)


def padding_changes_nothing(subject: Subject) -> Passed:
    """Padding on the left or right, with any token, does not change log-probabilities."""
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
                        "the model attends to padding: check how it uses attention_mask and "
                        "position_ids, or train with one episode per row",
                        Place(row.name, at + 1, (), row.ids[at + 1 : at + 2]),
                        largest=gap,
                    )
                worst = max(worst, gap)
        counted = _scores(subject.model, row.ids, _LEFT, 0, 0, positions=False)
        implicit = max(implicit, float((counted - alone).abs().max()))
    notes = []
    if not implicit <= tolerance:
        notes.append(
            f"without position_ids, left padding changes a log-probability by {implicit:.2g}"
        )
    figures = {"largest": worst, "without_position_ids": implicit}
    return Passed(f"{len(rows)} episodes padded 6 ways: at most {worst:.2g}", notes, figures)


def pad_token_is_sane(subject: Subject) -> Passed:
    """The pad token is a special token."""
    pad, control = subject.tokenizer.pad_token_id, subject.template.control_tokens()
    if pad is None:
        raise Drift("the tokenizer has no pad token", "set tokenizer.pad_token")
    added = subject.tokenizer.added_tokens_decoder.get(pad)
    if added is None or not added.special:
        raise Drift(
            f"the pad token {subject.decode([pad])!r} (id {pad}) is an ordinary token",
            "set tokenizer.pad_token to a special token; TRL treats a completion that ends with "
            "the pad token as terminated",
        )
    notes = []
    chat = subject.chat
    if chat is not None and pad in chat.stop_ids:
        text = "it also ends a turn, which is harmless: masks depend on lengths, not on ids"
        notes.append(text)
    return Passed(f"{control[pad]} ({pad})", notes)


def embeddings_hold_the_vocabulary(subject: Subject) -> Passed:
    """Every id of the tokenizer has an embedding and a logit."""
    model, size = subject.model, len(subject.tokenizer)
    rows = int(model.get_input_embeddings().weight.shape[0])
    head = model.get_output_embeddings()
    columns = rows if head is None else int(head.weight.shape[0])
    known = max([*subject.tokenizer.get_vocab().values(), size - 1])
    if known >= min(rows, columns):
        raise Drift(
            f"the tokenizer has ids up to {known}, but the model has {rows} embeddings and "
            f"{columns} logits",
            "call model.resize_token_embeddings(len(tokenizer)), then save both again",
        )
    tied = head is not None and head.weight is model.get_input_embeddings().weight
    notes = []
    if columns > known + 1:
        notes.append(f"{columns - known - 1} logits have no token; if sampled, they have no text")
    figures = {"tokens": size, "embeddings": rows, "logits": columns, "tied": tied}
    text = f"{size} tokens, {rows} embeddings, {columns} logits, {'tied' if tied else 'untied'}"
    return Passed(text, notes, figures)


def positions_hold_an_episode(subject: Subject) -> Passed:
    """An episode of `max_tokens` tokens fits into the positions that the model has."""
    positions, most = positions_of(subject.model.config), subject.settings.max_tokens
    if positions is None:
        return Passed("the model has no limit of positions")
    figures = {"positions": positions, "max_tokens": most}
    if most > positions:
        raise Drift(
            f"max_tokens is {most}, but the model has {positions} positions",
            f"set max_tokens (--max-tokens) to at most {positions}",
            None,
            **figures,
        )
    return Passed(f"{positions} positions, max_tokens {most}", figures=figures)


def _whose_fault(subject: Subject, row: Row, at: int, tolerance: float) -> str:
    """The remedy, depending on which side agrees with a forward pass of the episode alone."""
    heat = subject.settings.temperature
    scores = _scores(subject.model, row.ids, 0, 0, 0, temperature=heat)  # (P + T - 1,)
    alone = float(scores[len(row.prompt_ids) - 1 + at])
    engine = _size(row.engine_logprobs[at] - alone) <= tolerance
    trainer = _size(row.trainer_logprobs[at] - alone) <= tolerance
    text = f"a forward pass of the episode alone gives {alone:.6f}: "
    if engine and not trainer:
        text += "the trainer is wrong. Disable dropout in the model's config; if there is none, "
        return text + "positions or masks are wrong in batches of several episodes"
    if trainer and not engine:
        text += "the engine is wrong. Its cache, attention window or precision differs; "
        return text + "use another engine, or another attention implementation"
    return text + "both are wrong. Use one precision for engine and trainer, and disable dropout"


def _tolerance(subject: Subject) -> Tolerance:
    arguments = subject.episodes.trainer.args
    halved = subject.model.dtype != torch.float32 or arguments.bf16 or arguments.fp16
    usual = HALF if halved else FULL
    chosen = subject.settings.tolerance
    return usual if chosen is None else replace(usual, token=chosen)


def _gaps(row: Row) -> list[tuple[int, float]]:
    """(index, log-probability of the trainer minus the engine's) of every trained token."""
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
    """(n - 1,) log-probability of each id after the first, with padding on both sides."""
    device = next(model.parameters()).device
    row = torch.tensor(
        [[dummy_row] * left + list(ids) + [dummy_row] * right], device=device
    )  # (1, W)
    mask = torch.zeros_like(row)  # (1, W)
    mask[:, left : left + len(ids)] = 1
    extra = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if positions else {}
    with evaluating(model):
        logits = model(input_ids=row, attention_mask=mask, **extra).logits[0]  # (W, V)
    real = logits[left : left + len(ids) - 1].float() / temperature  # (n - 1, V)
    real = real.log_softmax(-1)  # (n - 1, V)
    return real.gather(1, row[0, left + 1 : left + len(ids), None]).squeeze(1)  # (n - 1,)


RULES: list[Rule[Subject]] = [
    Rule(
        "log-probs",
        "The trainer's probability of every sampled token equals the engine's.",
        engine_and_trainer_agree,
    ),
    Rule(
        "padding",
        "An episode's log-probabilities do not depend on the other episodes in a batch.",
        padding_changes_nothing,
    ),
    Rule("pad token", "Padding can be distinguished from sampled tokens.", pad_token_is_sane),
    Rule(
        "vocabulary",
        "Every token has an embedding and a logit.",
        embeddings_hold_the_vocabulary,
    ),
    Rule(
        "positions",
        "The model was trained for texts as long as an episode may be.",
        positions_hold_an_episode,
    ),
]
