"""Rules about the model and its engine: episodes, stopping, log-probabilities and sizes.

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
    RulePassed,
    RuleSkipped,
    first_difference,
)
from agentgym_train.audit.subject import AuditedModel
from agentgym_train.engines.base import Generation, Sampling
from agentgym_train.event_loop import run_async
from agentgym_train.models.positions import positions_of
from agentgym_train.models.setup import evaluating
from agentgym_train.training.agreement import FULL, HALF, Agreement, Tolerance

_ENGINE = "use another engine for this model"

_PROBE_TOKENS = 8

_PADDED_ROWS = 4

_LEFT, _RIGHT = 7, 5


def episodes(subject: AuditedModel) -> RulePassed:
    """The model works with agentgym's engine and trainer."""
    if isinstance(subject.played, Exception):
        raise subject.played
    rows, stops = subject.played.rows, subject.require_chat().stop_ids
    silent = [row.name for row in rows if not row.trajectory.turns]
    if len(silent) == len(rows):
        raise RuleFailed(
            "no episode had a turn: the first prompt exceeds the token budget",
            f"raise max_tokens above {max(len(row.tokens.prompt_ids) for row in rows)}",
        )
    outcomes = Counter(row.trajectory.outcome for row in rows)
    ends = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    turns = [row.tokens.completion_ids[start:end] for row in rows for start, end in row.spans]
    cut, sampled = sum(ids[-1] not in stops for ids in turns), sum(map(len, turns))
    notes = [f"{len(silent)} episodes had no tokens left for a turn"] if silent else []
    return RulePassed(
        f"{len(rows)} episodes ({ends}), {len(turns)} turns, {cut} of them truncated, "
        f"{sampled} trained tokens",
        notes,
        {"episodes": len(rows), "turns": len(turns), "trained_tokens": sampled},
    )


def stopping(subject: AuditedModel) -> RulePassed:
    """Generation stops at the end of a turn."""
    prompt = subject.episodes.rows[0].tokens.prompt_ids
    free = _sample(subject, prompt, ()).token_ids
    if not free or len(free) > _PROBE_TOKENS:
        fact = f"asked for at most {_PROBE_TOKENS} tokens, the engine returns {len(free)}"
        raise RuleFailed(fact, _ENGINE)
    stop = free[len(free) // 2]
    expected = free[: free.index(stop) + 1]
    found = _sample(subject, prompt, (stop,))
    at = first_difference(expected, found.token_ids)
    if at is not None or found.finish_reason != "stop":
        place = subject.place("a greedy turn", at or 0, expected, found.token_ids)
        raise RuleFailed(f"the engine does not stop at the stop id {stop}", _ENGINE, place)
    return RulePassed(f"the engine stops at stop ids, here at {subject.decode([stop])!r} ({stop})")


def _sample(subject: AuditedModel, prompt: list[int], stops: tuple[int, ...]) -> Generation:
    sampling = Sampling(_PROBE_TOKENS, temperature=0.0, stop_ids=stops)
    return run_async(subject.engine.generate(prompt, sampling))


def log_probs(subject: AuditedModel) -> RulePassed:
    """The trainer's probability of every sampled token equals the engine's."""
    allowed = _tolerance(subject)
    gaps = [(row, at, gap) for row in subject.episodes.rows for at, gap in _gaps(row)]
    if not gaps:
        raise RuleSkipped("no token was sampled")
    row, at, _ = max(gaps, key=lambda found: _size(found[2]))
    agreement = Agreement.from_gaps([gap for _, _, gap in gaps], allowed)
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
    turn = sum(end <= at for end in row.tokens.turn_ends) + 1
    where = f"{row.name}, turn {turn}"
    if not agreement.holds:
        token = row.tokens.completion_ids[at : at + 1]
        sides = {"engine": row.tokens.logprobs[at], "trainer": row.trainer_logprobs[at]}
        shown = (f"{subject.decode(token)} {side} {value:.6f}" for side, value in sides.items())
        raise RuleFailed(
            f"engine and trainer differ on {text}",
            _whose_fault(subject, row, at, allowed.token),
            ConversationDifference(where, at, token, token, *shown),
            **figures,
        )
    return RulePassed(f"{text}; largest at {where}, token {at}", figures=figures)


def _whose_fault(subject: AuditedModel, row: AuditedRow, at: int, tolerance: float) -> str:
    """The remedy, depending on which side agrees with a forward pass of the episode alone."""
    heat = subject.settings.temperature
    scores = logprobs_of(subject.model, row.ids, temperature=heat)  # (P + T - 1,)
    alone = float(scores[len(row.tokens.prompt_ids) - 1 + at])
    engine = _size(row.tokens.logprobs[at] - alone) <= tolerance
    trainer = _size(row.trainer_logprobs[at] - alone) <= tolerance
    text = f"a forward pass of the episode alone gives {alone:.6f}: "
    if engine and not trainer:
        text += "the trainer is wrong. Disable dropout in the model's config; if there is none, "
        return text + "positions or masks are wrong in batches of several episodes"
    if trainer and not engine:
        text += "the engine is wrong. Its cache, attention window or precision differs; "
        return text + "use another engine, or another attention implementation"
    return text + "both are wrong. Use one precision for engine and trainer, and disable dropout"


def padding(subject: AuditedModel) -> RulePassed:
    """An episode's log-probabilities do not depend on the other episodes in a batch."""
    tolerance = _tolerance(subject).token
    rows = subject.episodes.rows[:_PADDED_ROWS]
    fills = {"the pad token": int(subject.tokenizer.pad_token_id), "another token": 0}
    worst, implicit = 0.0, 0.0
    for row in rows:
        alone = logprobs_of(subject.model, row.ids)
        for name, fill in fills.items():
            for left, right in ((0, _RIGHT), (_LEFT, 0), (_LEFT, _RIGHT)):
                gaps = (logprobs_of(subject.model, row.ids, left, right, fill) - alone).abs()
                gap, at = float(gaps.max()), int(gaps.nan_to_num(math.inf).argmax()) + 1
                if not gap <= tolerance:
                    raise RuleFailed(
                        f"{left} columns of padding left and {right} right, filled with {name}, "
                        f"change a log-probability by {gap:.2g}",
                        "the model attends to padding: check how it uses attention_mask and "
                        "position_ids, or train with one episode per row",
                        ConversationDifference(row.name, at, (), row.ids[at : at + 1]),
                        largest=gap,
                    )
                worst = max(worst, gap)
        counted = logprobs_of(subject.model, row.ids, _LEFT, positions=False)
        implicit = max(implicit, float((counted - alone).abs().max()))
    notes = []
    if not implicit <= tolerance:
        notes.append(
            f"without position_ids, left padding changes a log-probability by {implicit:.2g}"
        )
    figures = {"largest": worst, "without_position_ids": implicit}
    return RulePassed(f"{len(rows)} episodes padded 6 ways: at most {worst:.2g}", notes, figures)


def pad_token(subject: AuditedModel) -> RulePassed:
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
    notes = []
    if subject.chat is not None and pad in subject.chat.stop_ids:
        text = "it also ends a turn, which is harmless: masks depend on lengths, not on ids"
        notes.append(text)
    return RulePassed(f"{added} ({pad})", notes)


def vocabulary(subject: AuditedModel) -> RulePassed:
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
    tied = head is not None and head.weight is model.get_input_embeddings().weight
    notes = []
    if columns > known + 1:
        notes.append(f"{columns - known - 1} logits have no token; if sampled, they have no text")
    figures = {"tokens": size, "embeddings": rows, "logits": columns, "tied": tied}
    text = f"{size} tokens, {rows} embeddings, {columns} logits, {'tied' if tied else 'untied'}"
    return RulePassed(text, notes, figures)


def positions(subject: AuditedModel) -> RulePassed:
    """The model was trained for texts as long as an episode may be."""
    most, limit = subject.settings.max_tokens, positions_of(subject.model.config)
    if limit is None:
        return RulePassed("the model has no limit of positions")
    figures = {"positions": limit, "max_tokens": most}
    if most > limit:
        raise RuleFailed(
            f"max_tokens is {most}, but the model has {limit} positions",
            f"set max_tokens (--max-tokens) to at most {limit}",
            None,
            **figures,
        )
    return RulePassed(f"{limit} positions, max_tokens {most}", figures=figures)


def _tolerance(subject: AuditedModel) -> Tolerance:
    halved = subject.model.dtype != torch.float32 or subject.episodes.half
    usual = HALF if halved else FULL
    chosen = subject.settings.tolerance
    return usual if chosen is None else replace(usual, token=chosen)


def _gaps(row: AuditedRow) -> list[tuple[int, float]]:
    """(index, log-probability of the trainer minus the engine's) of every trained token."""
    both = zip(row.tokens.loss_mask, row.tokens.logprobs, row.trainer_logprobs, strict=True)
    return [(at, theirs - ours) for at, (trained, ours, theirs) in enumerate(both) if trained]


def _size(gap: float) -> float:
    return abs(gap) if math.isfinite(gap) else math.inf


@torch.no_grad()
def logprobs_of(
    model: Any,
    ids: Sequence[int],
    left: int = 0,
    right: int = 0,
    fill: int = 0,
    *,
    positions: bool = True,
    temperature: float = 1.0,
) -> Tensor:
    """(n - 1,) log-probability of each id after the first, with padding on both sides."""
    device = next(model.parameters()).device
    row = torch.tensor([[fill] * left + list(ids) + [fill] * right], device=device)  # (1, W)
    mask = torch.zeros_like(row)  # (1, W)
    mask[:, left : left + len(ids)] = 1
    extra = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if positions else {}
    with evaluating(model):
        logits = model(input_ids=row, attention_mask=mask, **extra).logits[0]  # (W, V)
    real = logits[left : left + len(ids) - 1].float() / temperature  # (n - 1, V)
    real = real.log_softmax(-1)  # (n - 1, V)
    return real.gather(1, row[0, left + 1 : left + len(ids), None]).squeeze(1)  # (n - 1,)


RULES: Mapping[str, Callable[[AuditedModel], RulePassed]] = {
    "episodes": episodes,
    "stopping": stopping,
    "log-probs": log_probs,
    "padding": padding,
    "pad token": pad_token,
    "vocabulary": vocabulary,
    "positions": positions,
}
