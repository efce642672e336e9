"""The embedded map: its places, its ways, its tasks."""

from __future__ import annotations

import pytest

from agentgym_servers.web.sites.map.site import Map, logged_in_cookies, route, straight_km
from agentgym_servers.web.sites.map.tasks import tasks
from agentgym_servers.web.sites.pages import freeze
from page_reader import Sites, asked, crawl, given_junk, proved, splits_by_template

TASKS = tasks(0)


@pytest.fixture(scope="module")
def sites():
    return Sites({"map": Map()}, {"map": logged_in_cookies("")})


@pytest.fixture
def reader(sites):
    return sites.open()


def test_equal_seeds_make_equal_maps_and_others_do_not():
    first, second, third = (freeze(Map().make_database(seed)) for seed in (3, 3, 4))
    assert first == second
    assert first != third


def test_every_link_of_the_map_leads_to_a_page(reader):
    assert len(crawl(reader, "__MAP__", 500)) > 150


def test_a_degree_of_latitude_is_111_kilometres_and_a_car_makes_60_an_hour():
    south = {"name": "S", "latitude": 0.0, "longitude": 0.0, "street": "", "town": "S"}
    north = {**south, "name": "N", "latitude": 1.0, "town": "N"}
    # 2 pi 6371 / 360 = 111.19; x 1.3 = 144.55 km, as many minutes at 60 km/h.
    assert straight_km(south, north) == pytest.approx(111.19, abs=0.01)
    assert route(south, north, "car").kilometres == 144.6
    assert route(south, north, "car").minutes == 145


def test_a_town_is_found_before_what_stands_in_it(reader):
    reader.goto("__MAP__/search?query=cindral")
    assert reader.page.xpath("//main//a")[0].text == "Cindral"


def test_a_way_to_nowhere_says_so(reader):
    reader.goto("__MAP__/directions?from=Cindral&to=Atlantis&by=foot")
    assert "Where the way ends was not found" in reader.body


@given_junk
def test_garbage_is_answered_and_never_raises(reader, junk):
    for path in ("/", "/search", "/directions", "/way/{}", "/node/{}", "/{}", "/way/{}/x"):
        for method in ("GET", "POST"):
            fields = {name: [junk] for name in ("query", "from", "to", "by")}
            answer = asked(reader, method, "map.test", path.format(junk), fields)
            assert answer.status in (200, 404)


def test_the_map_has_nine_templates_of_which_two_are_for_testing():
    splits = splits_by_template(TASKS)
    assert len(splits) == 9
    assert list(splits.values()).count("test") == 2
    assert len(TASKS) >= 150


@pytest.mark.parametrize("template", sorted({t.config["intent_template_id"] for t in TASKS}))
def test_the_expert_earns_the_reward_and_doing_nothing_does_not(sites, template):
    for task in TASKS:
        if task.config["intent_template_id"] == template:
            proved(sites, task)
