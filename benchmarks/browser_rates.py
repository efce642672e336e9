"""How fast and how large episodes in Chromium are, next to BrowserGym as it comes.

Both open the same shop in the same browser, in one run: `python benchmarks/browser_rates.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from agentgym_servers.web.chromium.executable import find_chromium
from agentgym_servers.web.chromium.interpreter import web_environment, web_python
from agentgym_servers.web.front.front import Front
from agentgym_servers.web.front.origins import open_origins
from agentgym_servers.web.sites.embedded import embedded
from agentgym_servers.worlds.webarena import WebArena

PATHS = ("/headphones.html", "/lamps.html", "/tea.html", "/shoes.html")
EPISODES = 8


def main() -> None:
    """Measure both, one after the other, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resets", type=int, default=20, help="of ours; a fifth of them of stock")
    parser.add_argument("--stock", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stock:
        json.dump(stock(options.stock, max(2, options.resets // 5)), sys.stdout)
        return
    mine = ours(options.resets)
    theirs = run_stock(options.resets)
    table = Table(title="WebArena's shop in Chromium")
    for name in ("", "BrowserGym as it comes", "ours", "ratio"):
        table.add_column(name, justify="left" if not name else "right")
    table.add_row(*compared("reset, s", theirs["reset_s"], mine["reset_s"]))
    table.add_row(*compared("page opened and read, s", theirs["step_s"], mine["step_s"]))
    table.add_row(*compared("one episode, MB (PSS)", theirs["one_mb"], mine["one_mb"]))
    table.add_row(f"{EPISODES} episodes at once, MB (PSS)", "", f"{mine['all_mb']:.0f}", "")
    Console().print(table)


def compared(name: str, stock: float, own: float) -> tuple[str, str, str, str]:
    """A row of the table."""
    digits = 2 if name.endswith("s") else 0
    return name, f"{stock:.{digits}f}", f"{own:.{digits}f}", f"{stock / own:.1f}"


def ours(resets: int) -> dict[str, float]:
    """Resets of one environment while others stand open, as in training."""
    env = WebArena(backend="chromium")
    env.reset(seed=0)  # starts the browser
    one_mb = family_mb()
    reset_s = [timed(lambda seed=seed: env.reset(seed=seed)) for seed in range(resets)]
    step_s = [timed(lambda p=p: env.step(f"goto('http://shop.test{p}')")) for p in PATHS * 5]
    others = [WebArena(backend="chromium") for _ in range(EPISODES - 1)]
    for number, other in enumerate(others):
        other.reset(seed=number)
        other.step(f"goto('http://shop.test{PATHS[number % len(PATHS)]}')")
    all_mb = family_mb()
    for each in (env, *others):
        each.close()
    return measured(reset_s, step_s, one_mb) | {"all_mb": all_mb}


def run_stock(resets: int) -> dict[str, float]:
    """BrowserGym in its own environment, on the shop at an address of its own."""
    session = embedded(0).session()
    with Front() as front, tempfile.TemporaryDirectory() as folder:
        origins = open_origins(front, session)
        # BrowserGym's chat starts the browser of this place and no other.
        browser = Path(folder) / "chromium-1117" / "chrome-linux" / "chrome"
        browser.parent.mkdir(parents=True)
        browser.symlink_to(find_chromium())
        url = origins.sites.bases["shopping"]
        told = subprocess.run(
            [web_python(), __file__, "--stock", url, "--resets", str(resets)],
            env={**web_environment(), "PLAYWRIGHT_BROWSERS_PATH": folder},
            stdout=subprocess.PIPE,
            check=True,
        )
        origins.close()
    session.close()
    answer: dict[str, float] = json.loads(told.stdout)
    return answer


def stock(url: str, resets: int) -> dict[str, float]:
    """BrowserGym's environment with its own settings."""
    import browsergym.core  # noqa: F401  (registers its environment)
    import gymnasium as gym

    env = gym.make("browsergym/openended", disable_env_checker=True, task_kwargs={"start_url": url})
    env.reset(seed=0)
    one_mb = family_mb(with_own=True)  # ours has BrowserGym in a child
    reset_s = [timed(lambda: env.reset(seed=0)) for _ in range(resets)]
    step_s = [timed(lambda p=p: env.step(f"goto('{url}{p}')")) for p in PATHS]
    env.close()
    return measured(reset_s, step_s, one_mb)


def measured(reset_s: list[float], step_s: list[float], one_mb: float) -> dict[str, float]:
    """Medians."""
    return {
        "reset_s": statistics.median(reset_s),
        "step_s": statistics.median(step_s),
        "one_mb": one_mb,
    }


def timed(work: Callable[[], Any]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def family_mb(with_own: bool = False) -> float:
    """The memory of this process's children, and its own if asked; each page counted once."""
    me = psutil.Process(os.getpid())
    family = me.children(recursive=True) + ([me] if with_own else [])
    return sum(one.memory_full_info().pss for one in family) / 2**20


main()
