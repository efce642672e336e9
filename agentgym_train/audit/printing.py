"""Prints the findings of an audit, and the tokens of its episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from agentgym_env.printable import one_line
from agentgym_train.audit.episodes import AuditedRow
from agentgym_train.audit.rules import ConversationDifference, RuleResult
from agentgym_train.audit.subject import AuditedModel

_STYLE = {"pass": "green", "FAIL": "bold red", "skipped": "yellow"}

_MARGIN = " " * 9

_MOST = 600
"""Maximum characters shown of a span; the middle of longer ones is omitted."""


def print_finding(console: Console, finding: RuleResult) -> None:
    """Print a finding: status, rule and detail, then notes, or location and remedy."""
    line = Text(f"{finding.status:<8} ", style=_STYLE[finding.status])
    line.append(f"{finding.rule:<17}", style="bold")
    line.append(one_line(finding.detail), style="none")
    console.print(line, soft_wrap=True)
    for note in finding.notes:
        console.print(Text(f"{_MARGIN}note: {one_line(note)}", style="yellow"), soft_wrap=True)
    if finding.status != "FAIL":
        return
    _more(console, "proves", finding.proves)
    if finding.place is not None:
        _print_place(console, finding.place)
    _more(console, "do", finding.remedy)


def print_spans(console: Console, subject: AuditedModel, count: int) -> None:
    """Print the first `count` episodes as decoded spans, trained and masked."""
    legend = Text("\nlegend   ")
    legend.append("TRAINED «sampled by the policy»", style="bold green")
    legend.append("   ")
    legend.append("masked {prompt and observations}", style="dim")
    legend.append("   [n] tokens")
    console.print(legend, soft_wrap=True)
    for row in subject.episodes.rows[:count]:
        _print_row(console, subject, row)


def print_summary(
    console: Console, subject: AuditedModel, findings: Sequence[RuleResult], show: int
) -> None:
    """Print the spans of `show` episodes, then the number of passed and failed rules."""
    if show and any(f.rule == "episodes" and f.status == "pass" for f in findings):
        print_spans(console, subject, show)
    counts = {status: sum(f.status == status for f in findings) for status in _STYLE}
    style = _STYLE["FAIL" if counts["FAIL"] else "pass"]
    words = f"{counts['pass']} rules passed, {counts['FAIL']} failed, {counts['skipped']} skipped"
    console.print(Text(f"\n{words}", style=style), soft_wrap=True)


def audit_json(subject: AuditedModel, findings: Sequence[RuleResult]) -> dict[str, Any]:
    """The audit as plain values."""
    statuses = [finding.status for finding in findings]
    return {
        "model": subject.name,
        "dtype": str(subject.model.dtype).removeprefix("torch."),
        "passed": "FAIL" not in statuses,
        "counts": {status: statuses.count(status) for status in _STYLE},  # type: ignore[arg-type]
        "rules": [asdict(finding) for finding in findings],
    }


def _print_row(console: Console, subject: AuditedModel, row: AuditedRow) -> None:
    tokens, turns = row.tokens, len(row.trajectory.turns)
    words = f"{turns} turns, {len(row.ids)} tokens, {sum(tokens.loss_mask)} trained"
    title = f"\n{row.name}: {words}, ended by {row.trajectory.outcome}"
    console.print(Text(title, style="bold"), soft_wrap=True)
    _print_span(console, subject, "prompt", tokens.prompt_ids, False)
    at = 0
    for turn, (start, end) in enumerate(row.spans, 1):
        if start > at:
            _print_span(console, subject, "env", tokens.completion_ids[at:start], False)
        _print_span(console, subject, f"turn {turn}", tokens.completion_ids[start:end], True)
        at = end


def _print_span(
    console: Console, subject: AuditedModel, name: str, ids: Sequence[int], trained: bool
) -> None:
    text = one_line(subject.decode(ids))
    if len(text) > _MOST:
        text = f"{text[: _MOST // 2]} … {text[-_MOST // 2 :]}"
    kind = f"TRAINED [{len(ids)}] «{text}»" if trained else f"masked  [{len(ids)}] {{{text}}}"
    style = "bold green" if trained else "dim"
    console.print(Text(f"  {name:<8} ").append(kind, style=style), soft_wrap=True)


def _print_place(console: Console, place: ConversationDifference) -> None:
    token = "" if place.token is None else f", token {place.token}"
    _more(console, "first at", f"{place.where}{token}")
    for name, ids, text in (
        ("expected", place.expected_ids, place.expected),
        ("found", place.found_ids, place.found),
    ):
        if ids or text:
            _more(console, name, f"{list(ids) if ids else ''} {text!r}".strip())


def _more(console: Console, name: str, text: str) -> None:
    console.print(Text(f"{_MARGIN}{name:<9} {one_line(text)}"), soft_wrap=True)
