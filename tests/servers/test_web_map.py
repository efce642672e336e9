"""The embedded map: its places and its ways."""

from __future__ import annotations

import pytest

from agentgym_servers.web.sites.map.site import route, straight_km


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
