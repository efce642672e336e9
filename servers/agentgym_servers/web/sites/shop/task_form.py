"""How the shop's tasks are written down: templates with slots, and WebArena's JSON of each."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from agentgym_servers.web.sites.shop.data import Dice
from agentgym_servers.web.tasks.scripts import Click, Fill, ScriptedTask, Select, Step, Stop

Json: TypeAlias = dict[str, Any]
PLACES = {"shopping": "__SHOPPING__", "shopping_admin": "__SHOPPING_ADMIN__"}


class Instance(msgspec.Struct, frozen=True):
    """One way to fill a template's slots, how that is evaluated, and how it is solved."""

    slots: dict[str, Any]
    evaluation: Json
    expert: tuple[Step, ...]


Maker: TypeAlias = Callable[[sqlite3.Connection, Dice], Iterable[Instance]]


class Template(msgspec.Struct, frozen=True):
    """Tasks that differ in their slots only."""

    id: int
    intent: str
    site: Literal["shopping", "shopping_admin"]
    split: Literal["train", "test"]
    make: Maker


class Templates:
    """The templates of one site."""

    def __init__(self, site: Literal["shopping", "shopping_admin"], first_id: int) -> None:
        self.listed: list[Template] = []
        self._site: Literal["shopping", "shopping_admin"] = site
        self._first_id = first_id

    def add(
        self, number: int, intent: str, *, split: Literal["train", "test"] = "train"
    ) -> Callable[[Maker], Maker]:
        """Make a template of a function that gives instances; the number never changes."""

        def add(make: Maker) -> Maker:
            identity = self._first_id + number
            self.listed.append(Template(identity, intent, self._site, split, make))
            return make

        return add


def tasks_of(template: Template, database: sqlite3.Connection, seed: int) -> list[ScriptedTask]:
    """The tasks of a template over a shop's data."""
    made = template.make(database, Dice(1000 * seed + template.id))
    return [ScriptedTask(_config(template, one), template.split, one.expert) for one in made]


def rows(database: sqlite3.Connection, query: str, *values: object) -> list[sqlite3.Row]:
    """The rows of a query."""
    return database.execute(query, values).fetchall()


def one_of_each(found: Iterable[sqlite3.Row], column: str) -> list[sqlite3.Row]:
    """The rows whose value in a column no other row has: those without a tie."""
    listed = list(found)
    values = [row[column] for row in listed]
    return [row for row in listed if values.count(row[column]) == 1]


def answers(*include: str) -> Json:
    """The answer has each of these in it."""
    return _string({"must_include": list(include)}, ", ".join(include))


def answers_exactly(text: str) -> Json:
    """The answer is this."""
    return _string({"exact_match": text}, text)


def arrives(url: str, *checks: Json) -> Json:
    """The episode ends at an address, and, where there are checks, with their pages so."""
    types = ["url_match", "program_html"] if checks else ["url_match"]
    return {**_pages(types, checks), "reference_url": url, "url_note": "GOLD in PRED"}


def leaves(*checks: Json) -> Json:
    """The episode ends with these pages so."""
    return _pages(["program_html"], checks)


def shows(url: str, locator: str, *include: str) -> Json:
    """What a page's locator gives has each of these in it."""
    return {"url": url, "locator": locator, "required_contents": {"must_include": list(include)}}


def equals(url: str, locator: str, text: str) -> Json:
    """What a page's locator gives is this."""
    return {"url": url, "locator": locator, "required_contents": {"exact_match": text}}


def outer_text(selector: str) -> str:
    """The locator of an element's text."""
    return f"document.querySelector('{selector}').outerText"


def value_of(name: str) -> str:
    """The locator of a field's value."""
    return f"document.querySelector('[name=\"{name}\"]').value"


def fills(**fields: str) -> tuple[Step, ...]:
    """Fill fields by their labels, where an underscore means a space."""
    return tuple(Fill(label.replace("_", " "), text) for label, text in fields.items())


def clicks(*names: str) -> tuple[Step, ...]:
    """Follow links by their names."""
    return tuple(Click("link", name) for name in names)


def presses(name: str) -> tuple[Step, ...]:
    """Press a button."""
    return (Click("button", name),)


def selects(**fields: str) -> tuple[Step, ...]:
    """Choose from lists by their labels, where an underscore means a space."""
    return tuple(Select(label.replace("_", " "), option) for label, option in fields.items())


def stops(answer: str = "") -> tuple[Step, ...]:
    """End the episode."""
    return (Stop(answer),)


def _string(reference: Json, raw: str) -> Json:
    return {
        "eval_types": ["string_match"],
        "reference_answers": reference,
        "reference_url": "",
        "program_html": [],
        "string_note": "",
        "reference_answer_raw_annotation": raw,
    }


def _pages(types: list[str], checks: Sequence[Json]) -> Json:
    return {
        "eval_types": types,
        "reference_answers": None,
        "reference_url": "",
        "program_html": list(checks),
    }


def _config(template: Template, instance: Instance) -> Json:
    intent = template.intent
    for name, value in instance.slots.items():
        intent = intent.replace("{{" + name + "}}", str(value))
    return {
        "sites": [template.site],
        "task_id": -1,
        "require_login": True,
        "storage_state": f"./.auth/{template.site}_state.json",
        "start_url": PLACES[template.site],
        "geolocation": None,
        "intent_template": template.intent,
        "instantiation_dict": instance.slots,
        "intent": intent,
        "require_reset": False,
        "eval": instance.evaluation,
        "intent_template_id": template.id,
    }
