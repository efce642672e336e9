"""WebArena's evaluation of an episode: the product of everything that its task asks for.

Nothing here knows a backend: pages, the shop's REST interface and the judge are given. What cannot
be judged raises, and is never a pass.
"""

from __future__ import annotations

import msgspec

from agentgym_servers.web.judge import Judge, JudgeMissing, same_answer, same_reason
from agentgym_servers.web.page_access import Pages, Rest
from agentgym_servers.web.page_match import Verdict, match_page, verdict
from agentgym_servers.web.site_map import SiteMap
from agentgym_servers.web.tasks import NOT_ACHIEVABLE, ReferenceAnswers, WebTask
from agentgym_servers.web.text_match import clean_answer, exact_match, includes_every
from agentgym_servers.web.url_match import url_match


class Judged(msgspec.Struct, frozen=True):
    """An episode's score, and why."""

    score: float
    """1.0 where every verdict passed, otherwise 0.0."""
    verdicts: tuple[Verdict, ...]


def evaluate(
    task: WebTask,
    answer: str,
    sites: SiteMap,
    pages: Pages,
    *,
    rest: Rest | None = None,
    judge: Judge | None = None,
) -> Judged:
    """Judge the answer with which the agent stopped, and the pages as it left them.

    Raises `JudgeMissing` for a task that needs a judge where there is none, whatever the answer.
    """
    task, shop = sites.resolve_task(task), sites.resolve("__SHOPPING__")
    if task.needs_judge and judge is None:
        raise JudgeMissing(
            f"Task {task.task_id} has a fuzzy_match; give a judge, or leave the task out."
        )
    verdicts: list[Verdict] = []
    for kind in task.eval.eval_types:
        match kind:
            case "string_match":
                verdicts += match_answer(task, answer, judge)
            case "url_match":
                reference, url = task.eval.reference_url or "", pages.current().url
                passed = url_match(reference, url)
                verdicts.append(verdict("url_match", passed, reference, url, "the address"))
            case "program_html":
                for item in task.eval.program_html:
                    verdicts += match_page(item, pages, rest, shop)
    return Judged(float(all(one.passed for one in verdicts)), tuple(verdicts))


def match_answer(task: WebTask, answer: str, judge: Judge | None) -> list[Verdict]:
    """Judge the answer alone; a judge is asked last, and only where there is something left."""
    rules = task.eval.reference_answers or ReferenceAnswers()
    # Each rule cleans once more: of two pairs of quotes both go.
    answer = clean_answer(answer)
    verdicts: list[Verdict] = []

    def add(rule: str, passed: bool, expected: str) -> None:
        verdicts.append(verdict(rule, passed, expected, answer, "the answer"))

    if rules.exact_match is not None:
        add("exact_match", exact_match(rules.exact_match, answer), rules.exact_match)
    if rules.must_include is not None:
        held = includes_every(rules.must_include, answer)
        for one, passed in zip(rules.must_include, held, strict=True):
            add("must_include", passed, one)
    if rules.fuzzy_match == NOT_ACHIEVABLE:
        passed = exact_match(NOT_ACHIEVABLE, answer) or (
            judge is not None and same_reason(judge, task.intent, task.eval.string_note, answer)
        )
        add("fuzzy_match", passed, f"{NOT_ACHIEVABLE}, or: {task.eval.string_note}")
    elif isinstance(rules.fuzzy_match, list):
        for one in rules.fuzzy_match:
            if not all(earlier.passed for earlier in verdicts):
                break
            passed = judge is not None and same_answer(judge, task.intent, one, answer)
            add("fuzzy_match", passed, one)
    return verdicts
