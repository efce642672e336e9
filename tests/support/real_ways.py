"""Ways through a few of WebArena's own tasks, on a shop with other goods than its own."""

from __future__ import annotations

from agentgym_servers.web.tasks.scripts import Click, Goto, Select, Step, Stop


def _orders_that_are(status: str) -> tuple[Step, ...]:
    return (Click("link", "Orders"), Select("Status", status), Click("button", "Apply Filters"))


WAYS: dict[int, tuple[Step, ...]] = {
    157: (Click("link", "Customers"), Stop()),
    521: (
        Goto("__SHOPPING__/newsletter/manage/"),
        Click("checkbox", "General Subscription"),
        Click("button", "Save"),
        Stop(),
    ),
    677: (*_orders_that_are("Processing"), Stop()),
}
"""A task's number in WebArena -> what solves it."""
