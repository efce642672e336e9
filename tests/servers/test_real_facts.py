"""The time zones: the frozen table, what is told of it, and what is asked."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from agentgym_servers.worlds.search.corpora import open_world
from tools.generated_world.timezones import Row, read_table


def test_the_table_is_frozen_and_names_its_source():
    table = files("tools.generated_world").joinpath("timezones.tsv").read_text("utf-8")
    assert "tzdata 2025b" in table
    assert "public domain" in table
    assert hashlib.sha256(table.encode()).hexdigest()[:16] == "aacc16cb4afdae39"


def test_there_are_418_zones_in_247_countries():
    rows = read_table()
    assert (len(rows), len({row.country for row in rows})) == (418, 247)
    kabul = next(row for row in rows if row.zone == "Asia/Kabul")
    # +3431+06912 in zone.tab: 34 * 60 + 31 and 69 * 60 + 12; four and a half hours ahead.
    assert kabul == Row("AF", "Afghanistan", "Asia/Kabul", 2071, 4152, 270, 270)


def test_distances_go_around_the_world_the_short_way():
    east, west = (Row("", "", "", 0, 60 * degrees, 0, 0) for degrees in (179, -179))
    assert east.distance(west) == 120


def test_there_are_665_passages_and_950_questions():
    world = open_world("timezones")
    assert len(world.passages) == 665
    assert {split: len(qs) for split, qs in world.questions.items()} == {"train": 800, "test": 150}
    assert {q.category for qs in world.questions.values() for q in qs} == {
        "lookup-1", "bridge-2", "bridge-3", "bridge-4", "comparison-4",
    }  # fmt: skip


def test_the_test_split_asks_about_africa_only():
    countries = {row.country for row in read_table() if row.zone.startswith("Africa/")}
    world = open_world("timezones")
    asked = {name for question in world.questions["test"] for name in question.entities}
    known = {row.country for row in read_table()}
    assert asked & known
    assert asked & known <= countries


def test_passages_and_questions_are_the_ones_that_were_released():
    world = open_world("timezones")
    lines = [passage.contents for passage in world.passages]
    lines += [repr((q.id, q.text, q.answers)) for qs in world.questions.values() for q in qs]
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] == "6968d5ab4014e389"
