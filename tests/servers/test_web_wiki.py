"""The embedded encyclopedia: its articles and its tasks."""

from __future__ import annotations

import pytest

from agentgym_servers.web.sites.pages import freeze
from agentgym_servers.web.sites.wiki.site import Wiki, linked, logged_in_cookies
from agentgym_servers.web.sites.wiki.tasks import tasks
from page_reader import Sites, asked, crawl, given_junk, proved, splits_by_template

TASKS = tasks(0)


@pytest.fixture(scope="module")
def sites():
    return Sites({"wikipedia": Wiki()}, {"wikipedia": logged_in_cookies("")})


@pytest.fixture
def reader(sites):
    return sites.open()


def test_equal_seeds_make_equal_encyclopedias_and_others_do_not():
    first, second, third = (freeze(Wiki().make_database(seed)) for seed in (3, 3, 4))
    assert first == second
    assert first != third


def test_every_article_is_reached_from_the_main_page(reader):
    articles = {url for url in crawl(reader, "__WIKIPEDIA__/", 500) if "/A/" in url}
    count = Wiki().make_database(0).execute("SELECT count(*) FROM article").fetchone()[0]
    assert count >= 150
    assert len(articles) >= count - 15


def test_brackets_in_a_text_are_links():
    assert linked("by [[Alma]].") == [("by ", ""), ("Alma", "Alma"), (".", "")]


def test_an_article_is_found_whatever_its_case(reader):
    assert reader.goto("__WIKIPEDIA__/A/aldermouth").status == 200
    assert reader.goto("__WIKIPEDIA__/A/University_of_Aldermouth").status == 200


@given_junk
def test_garbage_is_answered_and_never_raises(reader, junk):
    for path in ("/", "/search", "/A/{}", "/{}"):
        for method in ("GET", "POST"):
            answer = asked(reader, method, "wiki.test", path.format(junk), {"pattern": [junk]})
            assert answer.status in (200, 404)


def test_the_encyclopedia_has_eight_templates_of_which_two_are_for_testing():
    splits = splits_by_template(TASKS)
    assert len(splits) == 8
    assert list(splits.values()).count("test") == 2
    assert len(TASKS) >= 100


@pytest.mark.parametrize("template", sorted({t.config["intent_template_id"] for t in TASKS}))
def test_the_expert_earns_the_reward_and_doing_nothing_does_not(sites, template):
    for task in TASKS:
        if task.config["intent_template_id"] == template:
            proved(sites, task)
