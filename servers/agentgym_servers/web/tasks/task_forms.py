"""How the sites' tasks are written: templates, their instances, and WebArena's JSON of each."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from agentgym_servers.web.tasks.scripts import ScriptedTask, Step, Stop

PER_TEMPLATE: Final = 20
"""Most tasks of one template."""
PLACEHOLDERS: Final[Mapping[str, str]] = {
    "reddit": "__REDDIT__",
    "gitlab": "__GITLAB__",
    "wikipedia": "__WIKIPEDIA__",
    "map": "__MAP__",
}
WITH_ACCOUNTS: Final = ("gitlab", "reddit")
"""Sites where the agent is logged in from the start."""

Databases: TypeAlias = Mapping[str, sqlite3.Connection]
Evaluation: TypeAlias = dict[str, Any]


class Instance(msgspec.Struct, frozen=True):
    """One filling of a template: the words for its braces, the question, and the solution."""

    values: dict[str, str]
    evaluation: Evaluation
    steps: tuple[Step, ...]
    answer: str = ""
    start: str = ""
    """Where to begin, if not at the first site's front page."""


Maker: TypeAlias = Callable[[Databases], Iterator[Instance]]


class Template(msgspec.Struct, frozen=True):
    """A sentence with braces and the maker of its instances."""

    number: int
    split: Literal["train", "test"]
    sites: tuple[str, ...]
    intent: str
    make: Maker


class TaskBook:
    """The templates of a site, in the order in which they are written."""

    def __init__(self, *sites: str) -> None:
        self._sites = sites
        self.templates: list[Template] = []

    def template(self, number: int, intent: str, *, test: bool = False) -> Callable[[Maker], Maker]:
        """Take a maker of instances up; `test` keeps the template out of training."""

        def add(make: Maker) -> Maker:
            split: Literal["train", "test"] = "test" if test else "train"
            self.templates.append(Template(number, split, self._sites, intent, make))
            return make

        return add

    def tasks(self, databases: Databases, seed: int) -> list[ScriptedTask]:
        """At most `PER_TEMPLATE` tasks of each template, drawn by the seed."""
        drawn: list[ScriptedTask] = []
        for template in self.templates:
            chance = random.Random(seed * 10_000 + template.number)
            made = sorted(template.make(databases), key=lambda _: chance.random())
            drawn += [_task(template, instance) for instance in made[:PER_TEMPLATE]]
        return drawn


def answered(*parts: str) -> Evaluation:
    """The answer has all these parts."""
    return _evaluation(["string_match"], reference_answers={"must_include": list(parts)})


def answered_exactly(text: str) -> Evaluation:
    """The answer is this and nothing else."""
    return _evaluation(["string_match"], reference_answers={"exact_match": text})


def arrived(url: str) -> Evaluation:
    """The episode ends at this address."""
    return _evaluation(["url_match"], reference_url=url)


def changed(*pages: dict[str, Any], at: str | None = None) -> Evaluation:
    """Pages show what was to be done; `at` is where the episode ends, if that matters."""
    kinds = ["program_html"] if at is None else ["url_match", "program_html"]
    return _evaluation(kinds, reference_url=at, program_html=list(pages))


def shows(url: str, *parts: str, locator: str = "") -> dict[str, Any]:
    """A page where an element, or the whole, has all these parts."""
    contents = {"must_include": list(parts)}
    return {"url": url, "locator": locator, "required_contents": contents}


def shows_exactly(url: str, text: str, locator: str) -> dict[str, Any]:
    """A page where an element is this and nothing else."""
    return {"url": url, "locator": locator, "required_contents": {"exact_match": text}}


def outer_text(selector: str) -> str:
    """The locator of an element's text."""
    return f"document.querySelector('{selector}').outerText"


def rows(database: sqlite3.Connection, query: str, *values: object) -> list[sqlite3.Row]:
    """The rows of a query, by name of their columns."""
    cursor = database.cursor()
    cursor.row_factory = sqlite3.Row
    return cursor.execute(query, values).fetchall()


def best(ranked: Sequence[sqlite3.Row], column: str) -> sqlite3.Row | None:
    """The first of the rows ranked by a column, or None where the second is its equal."""
    if not ranked or (len(ranked) > 1 and ranked[0][column] == ranked[1][column]):
        return None
    return ranked[0]


def _evaluation(kinds: list[str], **given: Any) -> Evaluation:
    blank: Evaluation = {
        "eval_types": kinds,
        "reference_answers": None,
        "reference_url": "",
        "program_html": [],
        "string_note": "",
        "reference_answer_raw_annotation": "",
        "url_note": "GOLD in PRED",
    }
    return {**blank, **given}


def _task(template: Template, instance: Instance) -> ScriptedTask:
    intent = template.intent
    for name, value in instance.values.items():
        intent = intent.replace("{{" + name + "}}", value)
    accounts = ".".join(sorted(site for site in template.sites if site in WITH_ACCOUNTS))
    raw = {"reference_answer_raw_annotation": instance.answer}
    config = {
        "sites": list(template.sites),
        "task_id": -1,
        "require_login": True,
        "storage_state": f"./.auth/{accounts}_state.json" if accounts else None,
        "start_url": instance.start or PLACEHOLDERS[template.sites[0]],
        "geolocation": None,
        "intent_template": template.intent,
        "instantiation_dict": dict(instance.values),
        "intent": intent,
        "require_reset": False,
        "eval": {**instance.evaluation, **raw},
        "intent_template_id": template.number,
    }
    return ScriptedTask(config, template.split, (*instance.steps, Stop(instance.answer)))
