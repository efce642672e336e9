"""WebArena's task file, read strictly; knows nothing about pages or verdicts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

import msgspec

from agentgym_env.errors import AgentGymError, MissingExtra
from agentgym_servers.web.chromium.interpreter import package_folder

EvalType = Literal["string_match", "url_match", "program_html"]
SiteName = Literal["shopping", "shopping_admin", "reddit", "gitlab", "wikipedia", "map", "homepage"]

URL_RULE: Final = "GOLD in PRED"
NOT_ACHIEVABLE: Final = "N/A"
_PACKAGED: Final = {
    "libwebarena": ("webarena", "test.raw.json"),
    "webarena-verified": ("webarena_verified", "assets/dataset/test.raw.json"),
}


class InvalidTask(AgentGymError, ValueError):
    """A task does not have WebArena's format; the message names task and field."""


class ReferenceAnswers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the agent's answer is compared with; all rules that are given must agree."""

    exact_match: str | None = None
    must_include: list[str] | None = None
    fuzzy_match: list[str] | str | None = None
    """Answers that a judge calls equal, or `N/A` where the task cannot be done."""


class RequiredContents(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a page is compared with: exactly one of the two."""

    exact_match: str | None = None
    must_include: list[str] | None = None
    """Each item may offer choices, joined by ` |OR| `."""


class PageCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One item of `program_html`: a page, a place on it, and the text that must be there."""

    url: str
    """`last` for the page the agent is on, `func:...`, or an address that is opened afresh."""
    locator: str
    """Empty for the whole page, JavaScript, or `func:...`."""
    required_contents: RequiredContents
    prep_actions: list[str] = []
    """JavaScript that is run before the locator; what goes wrong in it is of no account."""


class Eval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a task is judged: every type that `eval_types` names must pass."""

    eval_types: list[EvalType]
    reference_answers: ReferenceAnswers | None
    reference_url: str | None
    program_html: list[PageCheck]
    url_note: str = URL_RULE
    string_note: str = ""
    """Why the task cannot be done, where it cannot."""
    reference_answer_raw_annotation: str | None = None
    annotation_note: str | None = None


class WebTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task as WebArena's `test.raw.json` has it; addresses may contain placeholders."""

    sites: list[SiteName]
    task_id: int
    require_login: bool
    storage_state: str | None
    start_url: str
    """Several are joined by ` |AND| `; see `start_urls`."""
    geolocation: dict[str, float] | None
    intent_template: str
    instantiation_dict: dict[str, str | int | float | list[str]]
    intent: str
    require_reset: bool
    eval: Eval
    intent_template_id: int
    string_note: str | None = None

    @property
    def start_urls(self) -> tuple[str, ...]:
        """The addresses that are open when the episode begins, one to a tab."""
        return tuple(self.start_url.split(" |AND| "))

    @property
    def needs_judge(self) -> bool:
        """Whether only a language model can judge some of its answers (`fuzzy_match`)."""
        answers = self.eval.reference_answers
        return (
            "string_match" in self.eval.eval_types
            and answers is not None
            and answers.fuzzy_match is not None
        )


def read_tasks(text: bytes | str, source: str = "the task file") -> list[WebTask]:
    """Read a JSON list of tasks; raises `InvalidTask` for the first that is not one."""
    try:
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise InvalidTask(f"{source} is not a JSON list of tasks: {error}") from error
    tasks = [_read(item, position, source) for position, item in enumerate(items)]
    seen: set[int] = set()
    for task in tasks:
        if task.task_id in seen:
            raise InvalidTask(f"{source} has two tasks {task.task_id}; give each its own task_id.")
        seen.add(task.task_id)
    return tasks


def load_tasks(path: Path) -> list[WebTask]:
    """The tasks of a file."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidTask(f"{path} cannot be read: {error.strerror}; give a task file.") from error
    return read_tasks(text, path.name)


def packaged_tasks(distributions: Iterable[str] = tuple(_PACKAGED)) -> list[WebTask]:
    """WebArena's 812 tasks, from the first of these distributions that is installed."""
    for distribution in distributions:
        package, inside = _PACKAGED[distribution]
        folder = package_folder(package)
        if folder is not None and (path := folder / inside).is_file():
            return load_tasks(path)
    raise MissingExtra(
        "WebArena's tasks are in libwebarena and in webarena-verified, and neither is here or in "
        "the browser's environment: run `make setup-web`, or pip install --no-deps libwebarena"
    )


def check_task(task: WebTask) -> None:
    """Raise `InvalidTask` where a task is well formed, but would pass for no reason or never."""
    rules, where = task.eval, f"Task {task.task_id}: eval"
    if not task.sites:
        raise InvalidTask(f"Task {task.task_id}: sites is empty; name the sites that it is on.")
    if not rules.eval_types:
        raise InvalidTask(f"{where}.eval_types is empty, so anything would pass; name one.")
    if "string_match" in rules.eval_types:
        _check_answers(rules.reference_answers, f"{where}.reference_answers")
    if "url_match" in rules.eval_types:
        if not rules.reference_url:
            raise InvalidTask(f"{where}.reference_url is empty; url_match needs one.")
        if rules.url_note != URL_RULE:
            raise InvalidTask(f"{where}.url_note is {rules.url_note!r}; the rule is {URL_RULE!r}.")
    if "program_html" in rules.eval_types:
        if not rules.program_html:
            raise InvalidTask(f"{where}.program_html is empty; program_html needs an item.")
        for number, item in enumerate(rules.program_html):
            _check_page(item, f"{where}.program_html[{number}]")


def _read(item: msgspec.Raw, position: int, source: str) -> WebTask:
    try:
        task = msgspec.json.decode(item, type=WebTask)
    except msgspec.DecodeError as error:
        named = msgspec.json.decode(item)
        number = named.get("task_id") if isinstance(named, dict) else None
        which = f"item {position}" if number is None else f"task {number}"
        raise InvalidTask(f"{source}, {which}: {error}") from error
    check_task(task)
    return task


def _check_answers(answers: ReferenceAnswers | None, where: str) -> None:
    if answers is None or answers == ReferenceAnswers():
        raise InvalidTask(f"{where} is empty; string_match needs a rule.")
    for name, items in (
        ("must_include", answers.must_include),
        ("fuzzy_match", answers.fuzzy_match),
    ):
        if isinstance(items, list) and not (items and all(items)):
            raise InvalidTask(f"{where}.{name} is empty or has an empty item; give its texts.")
    if isinstance(answers.fuzzy_match, str) and (
        answers.fuzzy_match != NOT_ACHIEVABLE
        or answers != ReferenceAnswers(fuzzy_match=NOT_ACHIEVABLE)
    ):
        raise InvalidTask(
            f"{where}.fuzzy_match is {answers.fuzzy_match!r}; "
            f"give a list, or {NOT_ACHIEVABLE!r} with no other rule."
        )


def _check_page(item: PageCheck, where: str) -> None:
    required = item.required_contents
    if not item.url:
        raise InvalidTask(f"{where}.url is empty; give 'last', a function or an address.")
    if (required.exact_match is None) == (required.must_include is None):
        raise InvalidTask(f"{where}.required_contents needs one of exact_match and must_include.")
    if required.must_include is not None and not (
        required.must_include
        and all(all(choice for choice in one.split(" |OR| ")) for one in required.must_include)
    ):
        raise InvalidTask(f"{where}.required_contents.must_include is empty or has an empty item.")
