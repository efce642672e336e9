"""The invented country that the map shows and the encyclopedia tells of."""

from __future__ import annotations

from typing import Final, NamedTuple


class Town(NamedTuple):
    """A town, its region, and where it lies."""

    name: str
    region: str
    latitude: float
    longitude: float


TOWNS: Final[tuple[Town, ...]] = (
    Town("Aldermouth", "Northmarch", 45.912, -30.844),
    Town("Brackwater", "Northmarch", 45.731, -30.317),
    Town("Cindral", "Highmoor", 45.488, -29.902),
    Town("Dunvarra", "Highmoor", 45.264, -30.233),
    Town("Eskerby", "Lakelands", 45.107, -29.551),
    Town("Fennimore", "Lakelands", 44.953, -29.874),
    Town("Galloden", "Eastfold", 45.386, -28.957),
    Town("Hollin Quay", "Eastfold", 45.149, -28.702),
    Town("Ironbeck", "Saltcoast", 44.671, -30.418),
    Town("Jarrow Vale", "Saltcoast", 44.528, -30.861),
    Town("Kestermere", "Southdown", 44.392, -29.643),
    Town("Lornhaven", "Southdown", 44.215, -29.188),
)
REGIONS: Final = tuple(dict.fromkeys(town.region for town in TOWNS))
