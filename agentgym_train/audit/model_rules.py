"""Rules about the model, its engine and its tokenizer: episodes, log-probabilities and sizes.

The first line of a rule's docstring is what it proves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from agentgym_train.audit.episodes import AuditedRow
from agentgym_train.audit.rules import (
    ConversationDifference,
    RuleFailed,
    RuleResult,
    RuleSkipped,
)
from agentgym_train.audit.subject import AuditedModel
from agentgym_train.models.setup import evaluating
from agentgym_train.training.agreement import FULL, HALF, Agreement, Tolerance

_PADDED_ROWS = 4

_LEFT, _RIGHT = 7, 5
"""Columns of padding."""


def episodes(subject: AuditedModel) -> RuleResult:
    """The model works with agentgym's engine and trainer."""
    if isinstance(subject.played, Exception):
        raise subject.played
    rows, stops = subject.played.rows, subject.require_chat().stop_ids
    if not any(row.trajectory.turns for row in rows):
        raise RuleFailed(
            "no episode had a turn: the first prompt exceeds the token budget",
            f"raise max_tokens above {max(len(row.tokens.prompt_ids) for row in rows)}",
        )
    outcomes = Counter(row.trajectory.outcome for row in rows)
    ends = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    turns = [row.tokens.completion_ids[start:end] for row in rows for start, end in row.spans]
    cut, sampled = sum(ids[-1] not in stops for ids in turns), sum(map(len, turns))
    return RuleResult(
        f"{len(rows)} episodes ({ends}), {len(turns)} turns, {cut} of them truncated, "
        f"{sampled} trained tokens"
    )


def log_probs(subject: AuditedModel) -> RuleResult:
    """The trainer's probability of every sampled token equals the engine's."""
    allowed = _tolerance(subject)
    gaps = [
        (row, at, row.trainer_logprobs[at] - row.tokens.logprobs[at])
        for row in subject.episodes.rows
        for at, trained in enumerate(row.tokens.loss_mask)
        if trained
    ]
    if not gaps:
        raise RuleSkipped("no token was sampled")
    row, at, _ = max(gaps, key=lambda found: _size(found[2]))
    agreement = Agreement.from_gaps([gap for _, _, gap in gaps], allowed)
    kl = sum(math.expm1(gap) - gap for _, _, gap in gaps) / len(gaps)
    figures = {
        "tokens": len(gaps), "max": agreement.most, "mean": agreement.mean,
        "share_above": agreement.share_above, "tolerance": allowed.token, "kl_k3": kl,
    }  # fmt: skip
    text = (
        f"{len(gaps)} tokens: largest difference {agreement.most:.2g}, mean {agreement.mean:.2g}, "
        f"{agreement.share_above:.1%} above {allowed.token:g}, KL {kl:.2g}"
    )
    where = f"{row.name}, turn {sum(end <= at for end in row.tokens.turn_ends) + 1}"
    if agreement.holds:
        return RuleResult(f"{text}; largest at {where}, token {at}", figures=figures)
    token = row.tokens.completion_ids[at : at + 1]
    sides = {"engine": row.tokens.logprobs[at], "trainer": row.trainer_logprobs[at]}
    shown = (f"{subject.decode(token)} {side} {value:.6f}" for side, value in sides.items())
    raise RuleFailed(
        f"engine and trainer differ on {text}",
        _whose_fault(subject, row, at, allowed.token),
        ConversationDifference(where, at, token, token, *shown),
        **figures,
    )


def _whose_fault(subject: AuditedModel, row: AuditedRow, at: int, tolerance: float) -> str:
    """The remedy, depending on which side agrees with a forward pass of the episode alone."""
    heat = subject.settings.temperature
    scores = _logprobs_of(subject.model, row.ids, temperature=heat)  # (P + T - 1,)
    alone = float(scores[len(row.tokens.prompt_ids) - 1 + at])
    engine = _size(row.tokens.logprobs[at] - alone) <= tolerance
    trainer = _size(row.trainer_logprobs[at] - alone) <= tolerance
    remedy = "both are wrong. Use one precision for engine and trainer, and disable dropout"
    if engine and not trainer:
        remedy = (
            "the trainer is wrong. Disable dropout in the model's config; if there is none, "
            "positions or masks are wrong in batches of several episodes"
        )
    if trainer and not engine:
        remedy = (
            "the engine is wrong. Its cache, attention window or precision differs; use another "
            "engine, or another attention implementation"
        )
    return f"a forward pass of the episode alone gives {alone:.6f}: {remedy}"


def padding(subject: AuditedModel) -> RuleResult:
    """An episode's log-probabilities do not depend on the other episodes in a batch."""
    tolerance = _tolerance(subject).token
    rows = subject.episodes.rows[:_PADDED_ROWS]
    fills = {"the pad token": int(subject.tokenizer.pad_token_id), "another token": 0}
    worst = 0.0
    for row in rows:
        alone = _logprobs_of(subject.model, row.ids)
        for name, fill in fills.items():
            gaps = (_logprobs_of(subject.model, row.ids, _LEFT, _RIGHT, fill) - alone).abs()
            gap, at = float(gaps.max()), int(gaps.nan_to_num(math.inf).argmax()) + 1
            if not gap <= tolerance:
                raise RuleFailed(
                    f"columns of padding left and right, filled with {name}, change a "
                    f"log-probability by {gap:.2g}",
                    "the model attends to padding: check how it uses attention_mask and "
                    "position_ids, or train with one episode per row",
                    ConversationDifference(row.name, at, (), row.ids[at : at + 1]),
                )
            worst = max(worst, gap)
    text = f"{len(rows)} episodes padded on both sides: at most {worst:.2g}"
    return RuleResult(text, figures={"largest": worst})


def pad_token(subject: AuditedModel) -> RuleResult:
    """Padding can be distinguished from sampled tokens."""
    pad = subject.tokenizer.pad_token_id
    if pad is None:
        raise RuleFailed("the tokenizer has no pad token", "set tokenizer.pad_token")
    added = subject.tokenizer.added_tokens_decoder.get(pad)
    if added is None or not added.special:
        raise RuleFailed(
            f"the pad token {subject.decode([pad])!r} (id {pad}) is an ordinary token",
            "set tokenizer.pad_token to a special token; TRL treats a completion that ends with "
            "the pad token as terminated",
        )
    return RuleResult(f"{added} ({pad})")


def vocabulary(subject: AuditedModel) -> RuleResult:
    """Every token has an embedding and a logit."""
    model, size = subject.model, len(subject.tokenizer)
    rows = int(model.get_input_embeddings().weight.shape[0])
    head = model.get_output_embeddings()
    columns = rows if head is None else int(head.weight.shape[0])
    known = max([*subject.tokenizer.get_vocab().values(), size - 1])
    if known >= min(rows, columns):
        raise RuleFailed(
            f"the tokenizer has ids up to {known}, but the model has {rows} embeddings and "
            f"{columns} logits",
            "call model.resize_token_embeddings(len(tokenizer)), then save both again",
        )
    notes = [f"{columns - known - 1} logits have no token; if sampled, they have no text"]
    text = f"{size} tokens, {rows} embeddings, {columns} logits"
    return RuleResult(text, notes if columns > known + 1 else ())


def _tolerance(subject: AuditedModel) -> Tolerance:
    halved = subject.model.dtype != torch.float32 or subject.episodes.half
    usual = HALF if halved else FULL
    chosen = subject.settings.tolerance
    return usual if chosen is None else replace(usual, token=chosen)


def _size(gap: float) -> float:
    return abs(gap) if math.isfinite(gap) else math.inf


@torch.no_grad()
def _logprobs_of(
    model: Any,
    ids: Sequence[int],
    left: int = 0,
    right: int = 0,
    fill: int = 0,
    temperature: float = 1.0,
) -> Tensor:
    """(n - 1,) log-probability of each id after the first, with padding on both sides."""
    device = next(model.parameters()).device
    row = torch.tensor([[fill] * left + list(ids) + [fill] * right], device=device)  # (1, W)
    mask = torch.zeros_like(row)  # (1, W)
    mask[:, left : left + len(ids)] = 1
    places = (mask.cumsum(1) - 1).clamp(min=0)  # (1, W)
    with evaluating(model):
        logits = model(input_ids=row, attention_mask=mask, position_ids=places).logits[0]  # (W, V)
    real = logits[left : left + len(ids) - 1].float() / temperature  # (n - 1, V)
    real = real.log_softmax(-1)  # (n - 1, V)
    return real.gather(1, row[0, left + 1 : left + len(ids), None]).squeeze(1)  # (n - 1,)


RULES: Mapping[str, Callable[[AuditedModel], RuleResult]] = {
    "episodes": episodes,
    "log-probs": log_probs,
    "padding": padding,
    "pad token": pad_token,
    "vocabulary": vocabulary,
}
