"""A hundred thousand episodes: rows at once, filters and searches that do not wait.

What a query costs is counted in instructions of SQLite's virtual machine, which are as many on
every machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest

from agentgym_env.run_store import RunStore
from agentgym_viewer.index import EpisodeIndex
from agentgym_viewer.indexer import Indexer
from agentgym_viewer.query import adjacent, count_of, page_of, query_of
from agentgym_viewer.runs import Runs
from cdp import needs_chromium
from tests.viewer.viewing import made_up, watched

pytestmark = pytest.mark.slow
COUNT = 100_000
FILTERS = {
    "nothing": {},
    "outcome": {"outcome": ["failure"]},
    "environment and turns": {"env": ["tests/Guess-v0"], "turns": ["2..3"]},
    "task": {"task": ["task-77"]},
    "sorted": {"sort": ["-reward"], "category": ["a", "b"]},
    "a phrase": {"q": ['"oak wool bed"']},
    "words that are in most": {"q": ["iron red"]},
    "words and more": {"q": ["stick"], "success": ["1"], "step": ["500.."]},
}


@pytest.fixture(scope="module")
def big(tmp_path_factory) -> RunStore:
    store = RunStore.create(tmp_path_factory.mktemp("big") / "run", {})
    episodes = made_up(COUNT, seed=1)
    while batch := list(islice(episodes, 5000)):
        store.append_trajectories("train", batch)
    return store


@pytest.fixture(scope="module")
def indexed(big, tmp_path_factory):
    index = EpisodeIndex(tmp_path_factory.mktemp("index") / "i.sqlite")
    runs = Runs([big.path], index)
    indexer = Indexer(index)
    indexer.follow({runs.ids[name]: path for name, path in runs.paths.items()})
    assert indexer.read_batches(), "there is more to read"
    query = query_of(index, runs.ids, {})
    assert len(page_of(index, query, 0, 100)) == 100
    assert count_of(index, query)["total"] < COUNT / 20, "the first rows wait for few others"
    while indexer.read_batches():
        pass
    yield index, runs
    index.close()


@contextmanager
def instructions(index: EpisodeIndex, at_most: int) -> Iterator[None]:
    """Interrupts what takes more instructions: an `sqlite3.OperationalError`."""
    used, step = [0], 1000

    def count() -> bool:
        used[0] += step
        return used[0] > at_most

    connection = index._connect()
    connection.set_progress_handler(count, step)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)
    sys.stdout.write(f"{used[0] / COUNT:.2f} instructions per episode\n")


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_takes_few_instructions_per_episode(name, indexed):
    index, runs = indexed
    with instructions(index, COUNT if name == "task" else 50 * COUNT):
        query = query_of(index, runs.ids, FILTERS[name])
        rows, count = page_of(index, query, 0, 100), count_of(index, query)
    assert rows and count["total"] >= len(rows)


def test_the_last_rows_and_a_rows_neighbours_are_as_near_as_the_first(indexed):
    index, runs = indexed
    query = query_of(index, runs.ids, {"sort": ["task"]})
    with instructions(index, 50 * COUNT):
        (last,) = page_of(index, query, COUNT - 1, 100)
        assert adjacent(index, query, last["id"])["next"] is None


def test_nothing_of_a_hundred_thousand_is_left_out(indexed):
    index, runs = indexed
    query = query_of(index, runs.ids, {})
    assert count_of(index, query)["total"] == COUNT
    phrase = query_of(index, runs.ids, {"q": ['"oak wool bed"']})
    by_hand = sum(
        any("oak wool bed" in text for text in (t.observation, *(k.observation for k in t.turns)))
        or any("oak wool bed" in k.response for k in t.turns)
        for t in made_up(COUNT, seed=1)
    )
    assert count_of(index, phrase)["total"] == by_hand


@needs_chromium
async def test_a_page_opens_on_a_hundred_thousand_and_filters_them(big, indexed, tmp_path):
    rows = "document.querySelectorAll('.rows .row a').length"
    async with watched(big.path, index=indexed[0].path) as (page, address):
        await page.goto(f"{address}/trajectories")
        await page.until(f"{rows} > 5")
        assert f"{COUNT:,} episodes" in await page.text(".count")
        await page.until("document.querySelector('#f-outcome-3')")
        for number in range(3):
            counted = await page.text(".count")
            await page.js(f"document.querySelector('#f-outcome-{number}').click()")
            await page.until(
                f"document.querySelector('.count').textContent !== {json.dumps(counted)}"
            )
        # Only the rows in sight exist, at the end of the list as at its beginning.
        await page.js("document.querySelector('.long-box').scrollTop = 1e9")
        await page.until(
            f"{rows} > 5 && document.querySelector('.rows .row[aria-rowindex=\"60000\"]') === null"
        )
        assert await page.js("document.querySelectorAll('.rows .row').length") < 120
