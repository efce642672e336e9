"""The tree text of pages equals what Chromium and BrowserGym made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym_servers.web.text_browser.accessibility import tree_text
from agentgym_servers.web.text_browser.dom import Document

PAGES = Path(__file__).parent / "web_pages"
NAMES = sorted(page.stem for page in PAGES.glob("*.html"))


def document_of(name: str) -> Document:
    return Document((PAGES / f"{name}.html").read_text(encoding="utf-8"))


def chromium_tree_of(name: str) -> str:
    return (PAGES / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")


@pytest.mark.parametrize("name", NAMES)
def test_a_fresh_page_has_the_tree_that_chromium_gives_it(name):
    document = document_of(name)
    assert tree_text(document, document.autofocus) == chromium_tree_of(name)


def test_a_table_row_without_a_body_gets_one_and_its_id():
    document = Document("<table><tr><td>a</td></tr><tr><td>b</td></tr></table>")
    tags = [document.by_bid[str(bid)].tag for bid in range(len(document.by_bid))]
    assert tags == ["html", "head", "body", "table", "tbody", "tr", "td", "tr", "td"]


@pytest.mark.parametrize(
    "html",
    [
        "",
        " ",
        "\0",
        "<",
        "plain",
        "<div>" * 3000,
        "<b>" * 3000,
        "<ul><li>" * 900,
        "<!-- only -->",
        "<input type=date value=1-x-2>",
    ],
)
def test_any_text_is_a_page(html):
    assert tree_text(Document(html)).startswith("RootWebArea ''")
