"""The embedded encyclopedia: its articles."""

from __future__ import annotations

from own_sites import MADE

from agentgym_servers.web.sites.wiki.site import linked
from page_reader import crawl


def test_every_article_is_reached_from_the_main_page(reader):
    articles = {url for url in crawl(reader, "__WIKIPEDIA__/", 500) if "/A/" in url}
    count = MADE["wikipedia"].make_database(0).execute("SELECT count(*) FROM article").fetchone()[0]
    assert count >= 150
    assert len(articles) >= count - 15


def test_brackets_in_a_text_are_links():
    assert linked("by [[Alma]].") == [("by ", ""), ("Alma", "Alma"), (".", "")]


def test_an_article_is_found_whatever_its_case(reader):
    assert reader.goto("__WIKIPEDIA__/A/aldermouth").status == 200
    assert reader.goto("__WIKIPEDIA__/A/University_of_Aldermouth").status == 200
