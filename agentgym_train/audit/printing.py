"""Prints the findings of an audit, and the tokens of its episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from agentgym_env.printable import one_line
from agentgym_train.audit.episodes import AuditedRow
from agentgym_train.audit.rules import RuleResult
from agentgym_train.audit.subject import AuditedModel

_STYLE = {"pass": "green", "FAIL": "bold red", "skipped": "yellow"}

_MOST = 600
"""Maximum characters shown of a span; the middle of longer ones is omitted."""


def print_finding(console: Console, finding: RuleResult) -> None:
    """Print a finding: status, rule and detail, then notes, or location and remedy."""
    line = Text(f"{finding.status:<8} ", style=_STYLE[finding.status])
    line.append(f"{finding.rule:<17}", style="bold").append(one_line(finding.detail), style="none")
    console.print(line, soft_wrap=True)
    more = [("note:", note) for note in finding.notes]
    if finding.status == "FAIL":
        more.append(("proves", finding.proves))
        if (place := finding.place) is not None:
            token = "" if place.token is None else f", token {place.token}"
            more.append(("first at", f"{place.where}{token}"))
            sides = (place.expected_ids, place.expected), (place.found_ids, place.found)
            for name, (ids, text) in zip(("expected", "found"), sides, strict=True):
                more += [(name, f"{list(ids) if ids else ''} {text!r}".strip())] * bool(ids or text)
        more.append(("do", finding.remedy))
    for name, text in more:
        style = "yellow" if name == "note:" else ""
        console.print(Text(f"{' ' * 9}{name:<9} {one_line(text)}", style=style), soft_wrap=True)


def print_spans(console: Console, subject: AuditedModel, count: int) -> None:
    """Print the first `count` episodes as decoded spans, trained and masked."""
    legend = Text("\nlegend   ")
    legend.append("TRAINED «sampled by the policy»", style="bold green")
    legend.append("   masked {prompt and observations}", style="dim").append("   [n] tokens")
    console.print(legend, soft_wrap=True)
    for row in subject.episodes.rows[:count]:
        _print_row(console, subject, row)


def print_summary(
    console: Console, subject: AuditedModel, findings: Sequence[RuleResult], show: int
) -> None:
    """Print the spans of `show` episodes, then the number of passed and failed rules."""
    if show and any(f.rule == "episodes" and f.status == "pass" for f in findings):
        print_spans(console, subject, show)
    counts = _counts(findings)
    words = f"{counts['pass']} rules passed, {counts['FAIL']} failed, {counts['skipped']} skipped"
    style = _STYLE["FAIL" if counts["FAIL"] else "pass"]
    console.print(Text(f"\n{words}", style=style), soft_wrap=True)


def audit_json(subject: AuditedModel, findings: Sequence[RuleResult]) -> dict[str, Any]:
    """The audit as plain values."""
    counts = _counts(findings)
    return {
        "model": subject.name,
        "dtype": str(subject.model.dtype).removeprefix("torch."),
        "passed": not counts["FAIL"],
        "counts": counts,
        "rules": [asdict(finding) for finding in findings],
    }


def _counts(findings: Sequence[RuleResult]) -> dict[str, int]:
    found = Counter[str](finding.status for finding in findings)
    return {status: found[status] for status in _STYLE}


def _print_row(console: Console, subject: AuditedModel, row: AuditedRow) -> None:
    tokens, turns = row.tokens, len(row.trajectory.turns)
    words = f"{turns} turns, {len(row.ids)} tokens, {sum(tokens.loss_mask)} trained"
    title = f"\n{row.name}: {words}, ended by {row.trajectory.outcome}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    spans, at = [("prompt", tokens.prompt_ids)], 0
    for turn, (start, end) in enumerate(row.spans, 1):
        spans.append(("env", tokens.completion_ids[at:start]))
        spans.append((f"turn {turn}", tokens.completion_ids[start:end]))
        at = end
    for name, ids in spans:
        if not ids:
            continue
        text = one_line(subject.decode(ids))
        if len(text) > _MOST:
            text = f"{text[: _MOST // 2]} … {text[-_MOST // 2 :]}"
        trained = name.startswith("turn")
        kind = f"TRAINED [{len(ids)}] «{text}»" if trained else f"masked  [{len(ids)}] {{{text}}}"
        style = "bold green" if trained else "dim"
        console.print(Text(f"  {name:<8} ").append(kind, style=style), soft_wrap=True)
