"""The embedded forum: its pages, its forms, its tasks."""

from __future__ import annotations

import re

import pytest

from agentgym_servers.web.sites.forum.site import Forum, logged_in_cookies
from agentgym_servers.web.sites.forum.tasks import tasks
from agentgym_servers.web.sites.pages import freeze
from page_reader import Sites, asked, crawl, given_junk, proved, splits_by_template

ACCOUNT = "MarvelsGrantMan136"
TASKS = tasks(0)


@pytest.fixture(scope="module")
def sites():
    return Sites({"reddit": Forum()}, {"reddit": logged_in_cookies(ACCOUNT)})


@pytest.fixture
def reader(sites):
    return sites.open()


def test_equal_seeds_make_equal_forums_and_others_do_not():
    first, second, third = (freeze(Forum().make_database(seed)) for seed in (3, 3, 4))
    assert first == second
    assert first != third
    assert len(first) < 600_000


def test_every_link_of_the_forum_leads_to_a_page(reader):
    assert len(crawl(reader, "__REDDIT__", 900)) == 900


def test_a_vote_counts_once_and_can_be_taken_back(reader):
    reader.goto("__REDDIT__/f/books/top")
    reader.click("link", reader.page.xpath("//article//a[contains(., 'comment')]")[0].text)
    before = int(reader.page.xpath("//span[@class='vote__net-score']")[0].text)
    for button, score in (("Upvote", 1), ("Downvote", -1), ("Retract downvote", 0)):
        reader.click("button", button)
        after = int(reader.page.xpath("//span[@class='vote__net-score']")[0].text)
        assert after == before + score


def test_what_one_session_writes_no_other_sees(sites):
    one, other = sites.open(), sites.open()
    form = {"title": ["Only here"], "forum": ["books"], "body": ["A secret."]}
    one.goto("__REDDIT__/submit", "POST", form)
    assert "Only here" in one.goto("__REDDIT__/f/books/new").body
    assert "Only here" not in other.goto("__REDDIT__/f/books/new").body


def test_the_log_in_form_has_the_labels_that_webarena_fills_in(sites):
    reader = sites.open()
    reader.cookies.clear()
    reader.goto("__REDDIT__").click("link", "Log in")
    reader.labelled("Username").set("value", ACCOUNT)
    reader.labelled("Password").set("value", "test1234")
    reader.click("button", "Log in")
    assert f"/user/{ACCOUNT}" in reader.body


def test_a_wrong_password_logs_nobody_in(reader):
    reader.cookies.clear()
    form = {"_username": [ACCOUNT], "_password": ["guess"]}
    assert "Bad credentials" in reader.goto("__REDDIT__/login", "POST", form).body
    assert reader.goto("__REDDIT__/submit").url.endswith("/login")


def test_nobody_changes_what_is_another_persons(sites, reader):
    database = reader.session.database(sites.by_host["forum.test"])
    query = "SELECT s.id, f.name FROM submission s JOIN forum f ON f.id=s.forum_id WHERE user_id!=1"
    row = database.execute(query).fetchone()
    for verb in ("edit", "delete"):
        path = f"__REDDIT__/f/{row['name']}/{row['id']}/-/{verb}"
        assert reader.goto(path, "POST", {"title": ["Mine"]}).status == 403


@given_junk
def test_garbage_is_answered_and_never_raises(reader, junk):
    names = ("title", "forum", "body", "comment", "choice", "back", "name", "q", "page", "url")
    paths = ("/f/{}", "/f/books/{}", "/f/books/{}/x", "/user/{}", "/sv/{}", "/{}", "/all/{}")
    deeper = ("/f/books/1/-/comment/{}", "/f/{}/1/-/edit", "/f/{}/subscribe", "/user/{}/comments")
    fixed = ("/", "/submit", "/login", "/create_forum", "/search", "/forums", "/logout")
    for path in (*paths, *deeper, *fixed):
        for method in ("GET", "POST", "PUT"):
            fields = {name: [junk] for name in names}
            answer = asked(reader, method, "forum.test", path.format(junk), fields)
            assert answer.status in (200, 302, 400, 403, 404)


def test_a_form_of_a_megabyte_is_cut_and_kept(reader):
    form = {"title": ["x" * 10**6], "forum": ["books"], "body": ["y" * 10**6]}
    reader.goto("__REDDIT__/submit", "POST", form)
    assert reader.status == 200
    assert len(reader.body) < 20_000


def test_the_forum_has_twenty_templates_of_which_a_quarter_is_for_testing():
    splits = splits_by_template(TASKS)
    assert len(splits) == 20
    assert list(splits.values()).count("test") == 5
    assert len(TASKS) >= 300


@pytest.mark.slow
@pytest.mark.parametrize("template", sorted({t.config["intent_template_id"] for t in TASKS}))
def test_the_expert_earns_the_reward_and_doing_nothing_does_not(sites, template):
    for task in TASKS:
        if task.config["intent_template_id"] == template:
            proved(sites, task)


def test_tasks_of_a_seed_are_always_the_same():
    assert tasks(0) == TASKS


def test_comments_that_are_disliked_count_as_a_reader_of_the_pages_counts_them(reader):
    for task in [t for t in TASKS if t.config["intent_template_id"] == 1004][:5]:
        count = 0
        for number in range(1, 7):
            name = task.config["instantiation_dict"]["user"]
            reader.goto(f"__REDDIT__/user/{name}/comments?page={number}")
            scores = re.findall(r"<p>(\d+) up, (\d+) down</p>", reader.body)
            count += sum(int(down) > int(up) for up, down in scores)
        assert str(count) == task.expert[-1].answer


def test_a_vote_leads_back_to_a_path_of_the_forum_only(reader):
    for back in ("//evil.test/", "http://evil.test/", "/\\evil.test", "/a\r\nSet-Cookie: x"):
        answer = asked(reader, "POST", "forum.test", "/sv/1", {"choice": ["1"], "back": [back]})
        assert answer.location == "/"
