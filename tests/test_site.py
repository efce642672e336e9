"""The documentation site builds without a warning, is complete, and can be read by everybody."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from urllib.parse import quote_plus, unquote, urlsplit

import pytest

import cdp
from agentgym_env.cli.main import SUMMARIES
from agentgym_train.config.keys import config_keys
from agentgym_train.config.read import CONFIGS
from doc_blocks import PAGES as WRITTEN

ROOT = Path(__file__).parents[1]
PAGES = (
    "index.html",
    "get_started.html",
    "which_page.html",
    "training.html",
    "troubleshooting.html",
    "tutorials/custom.html",
    "reference/config.html",
    "worlds/TextCraft.html",
)
PAGE_WORDS, ALL_WORDS = 1_500, 40_000
"""Maximum words of a page of the documentation, and of all of them."""
FIRST = {
    "learning rate": {"training", "reference/config", "troubleshooting"},
    "notebook": {"tutorials/notebooks"},
    "CUDA out of memory": {"troubleshooting"},
    "push to hub": {"training"},
    "install": {"install"},
    "custom agent": {"tutorials/custom"},
    "vLLM": {"engines"},
}
"""What people search for, and the pages that may come first."""
AXE = find_spec("axe_playwright_python")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("sphinx") is None, reason="Sphinx is missing: make setup"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy of what it is made of."""
    folder = tmp_path_factory.mktemp("site")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    source = folder / "source"
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    done = subprocess.run(
        [
            sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going",
            str(source / "docs"), str(folder / "html"),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


class Links(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note what leads somewhere, and what can be led to."""
        found = dict(attributes)
        self.anchors |= {found[key] or "" for key in ("id", "name") if key in found}
        self.targets += [found[key] or "" for key in ("href", "src") if key in found]


def test_every_link_leads_to_a_file_and_to_an_anchor_in_it(site):
    pages = {page: Links(page) for page in site.rglob("*.html")}
    assert len(pages) > 60
    broken = []
    for page, links in pages.items():
        for target in links.targets:
            url = urlsplit(target)
            if url.scheme in ("http", "https"):
                broken += [(page.name, target)] * ("." not in url.netloc or " " in target)
                continue
            if url.scheme in ("data", "mailto"):
                continue
            file = (page.parent / unquote(url.path)).resolve() if url.path else page
            # Links back from the source code name one of the modules that export a name.
            is_source = page.is_relative_to(site / "_modules")
            known = pages[file].anchors if file in pages and not is_source else None
            lost = known is not None and url.fragment not in known | {"", "top"}
            broken += [(page.name, target)] * (not file.exists() or lost)
    assert not broken


@pytest.mark.parametrize("package", ["agentgym_env", "agentgym_train"])
def test_every_public_name_has_a_page(site, package):
    for name in importlib.import_module(package).__all__:
        page = site / "reference" / "api" / f"{package}.{name}.html"
        assert f'id="{package}.{name}"' in page.read_text(), name


def test_every_key_and_every_command_is_described(site):
    keys = (site / "reference" / "config.html").read_text()
    for method in CONFIGS:
        for key in config_keys(method):
            assert f">{key.name}<" in keys, (method, key.name)
    commands = (site / "reference" / "commands.html").read_text()
    assert all(f"agentgym {name}<" in commands for name in SUMMARIES)


def test_every_page_is_listed_for_language_models(site):
    lines = (site / "llms.txt").read_text(encoding="utf-8").splitlines()
    listed = {line.partition("](")[2].partition(".html")[0] for line in lines}
    written = {name.removeprefix("docs/").removesuffix(".md") for name in documentation()}
    assert {name for name in written if not name.endswith("README")} == listed - {""}


def documentation() -> dict[str, int]:
    """The words of each page that readers of the site get, by its path."""
    pages = {page.relative_to(ROOT).as_posix(): page for page in WRITTEN}
    also = {"servers/README.md", "benchmarks/README.md"}
    return {
        name: words(page.read_text(encoding="utf-8"))
        for name, page in pages.items()
        if name.startswith("docs/") or name in also
    }


def words(text: str) -> int:
    """The words of a page, those of code and tables included, without its comments."""
    shown = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    return sum(bool(re.search(r"\w", word)) for word in shown.split())


def test_pages_are_short():
    found = documentation()
    assert {name: count for name, count in found.items() if count > PAGE_WORDS} == {}
    assert sum(found.values()) <= ALL_WORDS, found


@cdp.needs_chromium
async def test_search_finds_the_page_that_is_meant_first(site):
    found = {}
    with serving(site) as address:
        async with cdp.chromium() as browser:
            page = await browser.page()
            for words in FIRST:
                await page.goto(f"{address}/search.html?q={quote_plus(words)}")
                await page.until("document.querySelector('#search-results .search-summary')")
                await page.until("document.querySelector('#search-results li a')")
                link = await page.js("document.querySelector('#search-results li a').pathname")
                found[words] = link.removeprefix("/").removesuffix(".html")
    assert {words: link for words, link in found.items() if link not in FIRST[words]} == {}


@cdp.needs_chromium
@pytest.mark.skipif(AXE is None, reason="Axe is missing: pip install axe-playwright-python")
async def test_axe_finds_no_serious_fault_in_either_theme_and_no_page_is_wider_than_a_phone(site):
    assert AXE is not None and AXE.submodule_search_locations is not None
    axe = (Path(AXE.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")
    faults, wide = [], []
    with serving(site) as address:
        async with cdp.chromium() as browser:
            page = await browser.page()
            for name in PAGES:
                await page.goto(f"{address}/{name}")
                await page.until("document.querySelector('article h1')")
                for dark in (False, True):
                    await page.look_like(1280, 860, dark=dark)
                    await page.js(axe + "; 0")
                    found = await page.js("axe.run().then(r => JSON.stringify(r.violations))")
                    faults += [
                        (name, dark, v["id"], [n["target"] for n in v["nodes"]][:3])
                        for v in json.loads(found)
                        if v["impact"] in ("serious", "critical")
                    ]
                await page.look_like(390, 844)
                if await page.js("document.documentElement.scrollWidth") > 390:
                    wide.append(name)
    assert (faults, wide) == ([], [])


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a server of the files in a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and prints nothing."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""
