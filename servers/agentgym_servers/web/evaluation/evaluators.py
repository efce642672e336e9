"""WebArena's evaluation of an episode: the product of everything that its task asks for.

Nothing here knows a backend: pages, the shop's REST interface and the judge are given. What cannot
be judged raises, and is never a pass.
"""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import parse_qs, urlparse

import msgspec

from agentgym_env.errors import AgentGymError
from agentgym_servers import answer_forms
from agentgym_servers.web.evaluation.own_rules import PageExists, answer_limit, is_target
from agentgym_servers.web.evaluation.page_access import Page, Pages, Rest, ScriptError
from agentgym_servers.web.evaluation.site_functions import call_function, read_call
from agentgym_servers.web.sites.site_map import SiteMap
from agentgym_servers.web.tasks.tasks import (
    NOT_ACHIEVABLE,
    InvalidTask,
    PageCheck,
    ReferenceAnswers,
    WebTask,
)

Rule = Callable[[str, str], bool]
"""A reference and a text in, whether the text is as the reference asks out."""

Judge = Callable[[str], str]
"""A prompt in, the model's reply out."""

_LONGEST_ANSWER: Final = 4000

_SAME_ANSWER: Final = """Grade an answer to a question. Other words for the same thing are fine: \
what counts is whether the answer means what the reference means. The special text 'N/A' stands \
for 'this cannot be done'.
Question: {question}
Reference: {reference}
Answer: {answer}
Close with one verdict: correct, incorrect or partially correct."""

_SAME_REASON: Final = """A task cannot be done. Somebody who tried it says why. Does what they say \
agree with the real reason, be it only by implication?
Task: {question}
Real reason: {reference}
Their reason: {answer}
Close with one verdict: same or different."""


class JudgeMissing(AgentGymError):
    """A task needs a judge and there is none, so there is no verdict on it."""


class JudgeUnclear(AgentGymError):
    """The judge's reply contains no verdict."""


def same_answer(judge: Judge, question: str, reference: str, answer: str) -> bool:
    """Whether the judge calls the answer correct; partially correct is not enough."""
    reply = judge(_prompt(_SAME_ANSWER, question, reference, answer)).lower()
    return _verdict(reply, against=("partially correct", "incorrect"), for_it="correct")


def same_reason(judge: Judge, question: str, reference: str, answer: str) -> bool:
    """Whether the judge calls the reason that is given the one why the task cannot be done."""
    reply = judge(_prompt(_SAME_REASON, question, reference, answer)).lower()
    return _verdict(reply, against=("different",), for_it="same")


def _prompt(template: str, question: str, reference: str, answer: str) -> str:
    # The template alone is formatted; braces in the texts stay what they are.
    return template.format(question=question, reference=reference, answer=answer[:_LONGEST_ANSWER])


def _verdict(reply: str, *, against: tuple[str, ...], for_it: str) -> bool:
    if any(word in reply for word in against):
        return False
    if for_it not in reply:
        raise JudgeUnclear(f"The judge said {reply[:200]!r}; it is to say {for_it!r} or not.")
    return True


_OPENING: Final = re.compile("[\u00ab\u201c\u2018\u201e]|`+")

_QUOTE_BEFORE_WORD: Final = re.compile(r"(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)")

_PERIOD: Final = re.compile(r"(?<=[^.])\.(?!\.)")

_LAST: Final = re.compile(r"[\])}>\"'\u00bb\u201d\u2019\s]*+\Z")

_NEXT: Final = re.compile(r"[)\";}\]*:@'({\[\u2018\u2019\u201c\u201d\u00ab\u00bb?!]|\s+(\S+)")

_WORD_BEFORE: Final = re.compile(
    r"[^\s()\"`{}\[\]:;&#*@'?!\u2018\u2019\u201c\u201d\u00ab\u00bb]*\Z"
)

_NUMBER_OR_INITIAL: Final = re.compile(r"-?[.,]?\d[\d,.-]*|[^\W\d]")

_COMMA_OR_COLON: Final = re.compile(r"([:,])(\D|\Z)")

_APART: Final = re.compile(r"\.{2,}|--|[;@#$%&\u2012-\u2015?!*\]\[(){}<>]")

_CLOSING: Final = re.compile("[\u00bb\u201d\u2019]|''")

_CLITIC: Final = re.compile(r"(?<=[^' ])('(?:s|m|d|ll|re|ve)?|n't)(?= )", re.IGNORECASE)

_D_YE: Final = re.compile(r"\bd(?='ye\b)", re.IGNORECASE)

_SPACED: Final = r" \g<0> "

_LONGEST_WORD: Final = 64


def words_of(text: str) -> list[str]:
    """The words and the marks of a text, in order."""
    text = _OPENING.sub(_SPACED, text).replace('"', " '' ")
    text = _QUOTE_BEFORE_WORD.sub("' ", text)
    text = _PERIOD.sub(_apart_if_last, text)
    text = _COMMA_OR_COLON.sub(r" \1 \2", text)
    text = _APART.sub(_SPACED, text)
    text = f" {' '.join(_CLOSING.sub(_SPACED, text).split())} "
    text = _D_YE.sub(r"\g<0> ", _CLITIC.sub(r" \1", text))
    return text.split()


def _apart_if_last(found: re.Match[str]) -> str:
    """Part a period from its word at a sentence's end; after a number the next word decides."""
    text, at = found.string, found.start()
    if _LAST.match(text, found.end()):
        return " . "
    following = _NEXT.match(text, found.end())
    if following is None:
        return "."
    before = _WORD_BEFORE.search(text[max(0, at - _LONGEST_WORD) : at])
    word = before.group().lstrip("-,") if before else ""
    after = following.group(1) or following.group()
    goes_on = after[0].islower() or after[0] in ",;:" or after in (".", "?", "!")
    return "." if goes_on and _NUMBER_OR_INITIAL.fullmatch(word) else " . "


def clean_answer(text: str) -> str:
    """Strip, take off one pair of equal quotes around the whole, and lower the case."""
    text = text.strip()
    for quote in "'\"":
        if text.startswith(quote) and text.endswith(quote):
            # A lone quote is its own pair, and nothing is left of it.
            return text[1:-1].lower()
    return text.lower()


def exact_match(reference: str, found: str) -> bool:
    """Whether both are equal once they are cleaned."""
    return clean_answer(reference) == clean_answer(found)


def must_include(reference: str, found: str, *, as_word: bool = False) -> bool:
    """Whether the reference is part of what was found, both cleaned.

    With `as_word`, a reference of one character must be a separate word: 5 is not in 25.
    """
    reference, found = clean_answer(reference), clean_answer(found)
    if as_word and len(reference) == 1 and len(words_of(reference)) == 1:
        return reference in words_of(found)
    return reference in found


def includes_choice(reference: str, found: str, rule: Rule = must_include) -> bool:
    """Whether any of the choices that ` |OR| ` joins is included."""
    return any(rule(choice, found) for choice in reference.split(" |OR| "))


_LONGEST_FOUND: Final = 500


class Verdict(msgspec.Struct, frozen=True):
    """One rule of a task, and whether it is met."""

    rule: str
    """Such as `must_include`, or `program_html exact_match`."""
    passed: bool
    expected: str
    found: str
    """The first 500 characters of what was compared with it."""
    where: str = "the answer"


def verdict(rule: str, passed: bool, expected: str, found: str, where: str) -> Verdict:
    """A verdict whose `found` is cut to length."""
    return Verdict(rule, passed, expected, found[:_LONGEST_FOUND], where)


def match_page(item: PageCheck, pages: Pages, rest: Rest | None, shop: str) -> list[Verdict]:
    """Judge one item of `program_html`; `shop` is the shop's base address."""
    url = item.url
    if url.startswith("func:"):
        url = call_function(read_call(url), pages.current(), rest, shop)
    where = f"{url or item.url} {item.locator}".strip()
    if not url:
        return _compare(item, "", where)
    if url == "last":
        return _compare(item, _select(item, pages.current(), rest, shop), where)
    page = pages.open(url)
    try:
        return _compare(item, _select(item, page, rest, shop), where)
    finally:
        page.close()


def _select(item: PageCheck, page: Page, rest: Rest | None, shop: str) -> str:
    """The text at the item's place; empty where a script fails, for the page is a wrong one."""
    locator = item.locator
    if not locator.strip():
        return page.content()
    if locator.startswith("func:"):
        return call_function(read_call(locator), page, rest, shop)
    if not locator.startswith(("document.", "[...document.")):
        raise InvalidTask(
            f"The locator {locator!r} is none; begin with document., [...document. or func:."
        )
    with contextlib.suppress(ScriptError):
        for action in item.prep_actions:
            page.evaluate(action)
    try:
        # As in Python, not as in JavaScript: true is "True" and null is "None" here.
        return str(page.evaluate(locator))
    except ScriptError:
        return ""


def _compare(item: PageCheck, selected: str, where: str) -> list[Verdict]:
    selected = html.unescape(selected)
    required = item.required_contents
    if required.exact_match is not None:
        passed = exact_match(required.exact_match, selected)
        return [verdict("program_html exact_match", passed, required.exact_match, selected, where)]
    return [
        verdict("program_html must_include", includes_choice(one, selected), one, selected, where)
        for one in required.must_include or ()
    ]


def url_match(reference: str, url: str) -> bool:
    """Whether the page's address contains a reference's.

    References are joined by ` |OR| `. Host and path of any one must be part of the page's host and
    path (so `/p` matches `/p/4`), and for every key in any reference's query the page has one of
    the values that the references give it.
    """
    path, query = _parts(url)
    references = [_parts(one) for one in reference.split(" |OR| ")]
    allowed: dict[str, set[str]] = {}
    for _, wanted in references:
        for key, values in wanted.items():
            allowed.setdefault(key, set()).update(values)
    return any(base in path for base, _ in references) and all(
        values & set(query.get(key, ())) for key, values in allowed.items()
    )


def _parts(url: str) -> tuple[str, dict[str, list[str]]]:
    # Not `urlsplit`: what follows a `;` in the last segment is no part of the path here.
    parts = urlparse(url.rstrip("/"))
    return parts.netloc + parts.path, parse_qs(parts.query)


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
    page_exists: PageExists | None = None,
) -> Judged:
    """Judge the answer with which the agent stopped, and the pages as it left them.

    By WebArena's rules; with `page_exists`, by those of our own sites (`own_rules`).

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
                verdicts += match_answer(task, answer, judge, own=page_exists is not None)
                if page_exists is not None and task.eval.reference_answers is not None:
                    limit = answer_limit(task.eval.reference_answers)
                    if len(answer.strip()) > limit:
                        most = f"at most {limit} characters"
                        verdicts.append(verdict("length", False, most, answer, "the answer"))
            case "url_match":
                reference, url = task.eval.reference_url or "", pages.current().url
                passed = url_match(reference, url)
                if page_exists is not None:
                    below = "program_html" in task.eval.eval_types
                    passed &= is_target(reference, url, below=below) and page_exists(url)
                verdicts.append(verdict("url_match", passed, reference, url, "the address"))
            case "program_html":
                for item in task.eval.program_html:
                    verdicts += match_page(item, pages, rest, shop)
    return Judged(float(all(one.passed for one in verdicts)), tuple(verdicts))


def match_answer(
    task: WebTask, answer: str, judge: Judge | None, *, own: bool = False
) -> list[Verdict]:
    """Judge the answer alone; a judge is called last, and only where something is left to judge.

    With `own`, an answer may have any form of `answer_forms`.
    """
    rules = task.eval.reference_answers or ReferenceAnswers()
    # Each rule cleans once more: of two pairs of quotes both go.
    answer = clean_answer(answer)
    verdicts: list[Verdict] = []

    def add(rule: str, passed: bool, expected: str) -> None:
        verdicts.append(verdict(rule, passed, expected, answer, "the answer"))

    if rules.exact_match is not None:
        same = answer_forms.same if own else exact_match
        add("exact_match", same(rules.exact_match, answer), rules.exact_match)
    if rules.must_include is not None:
        # A lone reference of one character must be a word.
        original = partial(must_include, as_word=len(rules.must_include) == 1)
        includes = answer_forms.includes if own else original
        for one in rules.must_include:
            add("must_include", includes_choice(one, answer, includes), one)
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
