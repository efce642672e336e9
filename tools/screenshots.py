"""The pictures of the documentation: every embedded site, every world, and the viewer's pages.

    python tools/screenshots.py sites worlds viewer

Real pages in Chromium. Worlds are shown by an oracle's episode in the viewer, and the viewer by two
short runs of the quickstart; what is missing in `--runs` is evaluated or trained first.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
from aiohttp import web
from PIL import Image

ROOT: Final = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "support")]

from agentgym_env.trajectory import Trajectory  # noqa: E402
from agentgym_servers.web.explore.panel import open_panel  # noqa: E402
from agentgym_viewer.server import make_app  # noqa: E402
from cdp import Page, chromium  # noqa: E402

SITES: Final = {
    "shop": ("shopping/7203/8", "http://shop.test/dorwick-orbit-wooden-puzzle.html"),
    "admin": ("shopping_admin/7303/17", "http://admin.test/admin/sales/order/view/order_id/258/"),
    "forum": ("reddit/1011/9", "http://forum.test/f/fermentation"),
    "code": ("gitlab/1154/15", "http://code.test/byteblaze/inkwell/-/issues/11"),
    "wiki": ("wikipedia/1302/7", "http://wiki.test/A/Galloden"),
    "map": ("map/1202/11", "http://map.test/way/245"),
    "home": ("wikipedia+map/1402/11", "http://home.test/"),
}
"""Picture -> a task and the page that is shown."""
WORLDS: Final = {
    "textcraft": ("--tasks", "birch boat"),
    "babyai": ("--tasks", "UnlockPickup/200"),
    "sciworld": ("--tasks", "find-animal/0"),
    "search": ("--limit", "1"),
    "webarena": ("--tasks", "shopping/7203/8"),
    "miniwob": ("--tasks", "login-user/0"),
}
"""World -> the task that its oracle does."""
TRAINED: Final = ("textcraft-seed-0", "textcraft-seed-1")
QUICKSTART: Final = "examples/train/textcraft/rl.yaml"
COLORS: Final = 256


def main() -> None:
    """Take the pictures that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="+", choices=["sites", "worlds", "viewer"])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "screenshots")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    given = parser.parse_args()
    if "worlds" in given.what:
        for world, tasks in WORLDS.items():
            make_run(given.runs / world, "eval", "--env", world, "--policy", "expert",
                     "--horizon", "100", *tasks, "--out", str(given.runs / world))  # fmt: skip
    if "viewer" in given.what:
        for seed, name in enumerate(TRAINED):
            make_run(given.runs / name, "train", QUICKSTART, f"output_dir={given.runs / name}",
                     "steps=36", "horizon.every=12", f"seed={seed}")  # fmt: skip
    for what in given.what:
        asyncio.run({"sites": sites, "worlds": worlds, "viewer": viewer}[what](given))


def make_run(folder: Path, *words: str) -> None:
    """Run `agentgym` where its run folder is not there yet."""
    if not (folder / "run.json").is_file():
        program = Path(sys.executable).with_name("agentgym")
        subprocess.run([program, *words], cwd=ROOT, check=True)


async def sites(given: argparse.Namespace) -> None:
    """Each site beside a goal, as `agentgym sites` shows it."""
    async with chromium() as browser:
        for name, (task, url) in SITES.items():
            with open_panel(task) as (explorer, address):
                page = await browser.page()
                await page.look_like(1200, 760)
                await page.goto(f"{address}/")
                await shown(page, explorer.start_url)
                await page.js(f"visit({json.dumps(explorer.links.shown(url))})")
                await shown(page, explorer.links.shown(url))
                await save(page, given.out / f"site-{name}.png")


async def shown(page: Page, url: str) -> None:
    """Wait until the panel knows that an address is shown."""
    await page.until(f"document.querySelector('#address').textContent.startsWith({url!r})")


async def worlds(given: argparse.Namespace) -> None:
    """The oracle's episode in each world."""
    async with viewing(*(given.runs / name for name in WORLDS)) as (page, address):
        for world in WORLDS:
            await page.look_like(1280, 860)
            await page.goto(f"{address}/episode/{world}/expert/0")
            await page.until("document.querySelector('.stage .turn')")
            if world == "babyai":
                picture = "document.querySelector('#picture img')"
                await page.until(f"{picture}?.complete && {picture}.naturalWidth > 100")
            await save(page, given.out / f"world-{world}.png")


async def viewer(given: argparse.Namespace) -> None:
    """The pages that the viewer's documentation shows."""
    runs = [given.runs / name for name in (*TRAINED, "babyai")]
    rows = "document.querySelectorAll('.rows .row').length > 3"
    turns = "document.querySelectorAll('.stage .turn').length > 2"
    picture = "document.querySelector('#picture img')"
    drawn = f"{turns} && {picture}?.complete && {picture}.naturalWidth > 100"
    good, bad = same_task(runs[0] / "trajectories" / "train.jsonl")
    first, second = (f"{TRAINED[0]}/train/{place}" for place in (good, bad))
    async with viewing(*runs) as (page, address):

        async def take(name: str, path: str, ready: str, **look: int | bool) -> None:
            await page.look_like(**({"width": 1280, "height": 860} | look))  # type: ignore[arg-type]
            await page.goto(f"{address}{path}")
            await page.until(f"{ready} && document.querySelector('#live').textContent === 'live'")
            if name != "tokens":
                await page.js("window.scrollTo(0, 0)")
            await save(page, given.out / f"view-{name}.png")

        await take("runs", "/?smooth=4", "document.querySelectorAll('.chart').length >= 5")
        await take("trajectories", "/trajectories?outcome=success", rows)
        await take("episode", "/episode/babyai/expert/0?turn=2", drawn, dark=True)
        await take("phone", "/episode/babyai/expert/0?turn=2", drawn, width=390, height=844)
        await take("compare", f"/compare?a={quote(first, safe='')}&b={quote(second, safe='')}",
                   "document.querySelectorAll('.aligned > li').length > 1")  # fmt: skip
        await take("tokens", f"/episode/{first}?turn=2&view=tokens&colors=logprob",
                   "document.querySelectorAll('.tokens .tk').length > 9")  # fmt: skip


def same_task(file: Path) -> tuple[int, int]:
    """The places of a success and a failure of one task, with tokens, late in a run's training."""
    place = 0
    groups: dict[int, dict[bool, int]] = {}
    for line in file.read_bytes().splitlines(keepends=True):
        episode = msgspec.json.decode(line, type=Trajectory)
        if episode.group == 0:
            groups.setdefault(episode.step or 0, {}).setdefault(bool(episode.success), place)
        place += len(line)
    found = [group for group in groups.values() if len(group) == 2]
    return found[-1][True], found[-1][False]


@asynccontextmanager
async def viewing(*runs: Path) -> AsyncIterator[tuple[Page, str]]:
    """A tab, and the address of a viewer over runs."""
    index = runs[0].parent / "screenshots.sqlite"
    runner = web.AppRunner(make_app(runs, index), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with chromium() as browser:
            yield await browser.page(), f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        index.unlink(missing_ok=True)


async def save(page: Page, path: Path) -> None:
    """Write what is in the window with few colors, as a small file."""
    await page.js("new Promise((found) => setTimeout(found, 300))")
    await page.screenshot(path)
    picture = Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
    # This method keeps rare colors, such as those of a legend.
    few = picture.quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
