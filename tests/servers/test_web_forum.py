"""The embedded forum: its forms, and who may do what."""

from __future__ import annotations

import re

from own_sites import READER, TASKS

from page_reader import asked


def test_a_vote_counts_once_and_can_be_taken_back(reader):
    reader.goto("__REDDIT__/f/books/top")
    reader.click("link", reader.page.xpath("//article//a[contains(., 'comment')]")[0].text)
    before = int(reader.page.xpath("//span[@class='vote__net-score']")[0].text)
    for button, score in (("Upvote", 1), ("Downvote", -1), ("Retract downvote", 0)):
        reader.click("button", button)
        after = int(reader.page.xpath("//span[@class='vote__net-score']")[0].text)
        assert after == before + score


def test_the_log_in_form_has_the_labels_that_webarena_fills_in(reader):
    reader.cookies.clear()
    reader.goto("__REDDIT__").click("link", "Log in")
    reader.labelled("Username").set("value", READER)
    reader.labelled("Password").set("value", "test1234")
    reader.click("button", "Log in")
    assert f"/user/{READER}" in reader.body


def test_a_wrong_password_logs_nobody_in(reader):
    reader.cookies.clear()
    form = {"_username": [READER], "_password": ["guess"]}
    assert "Bad credentials" in reader.goto("__REDDIT__/login", "POST", form).body
    assert reader.goto("__REDDIT__/submit").url.endswith("/login")


def test_nobody_changes_what_is_another_persons(sites, reader):
    database = reader.session.database(sites.by_host["forum.test"])
    query = "SELECT s.id, f.name FROM submission s JOIN forum f ON f.id=s.forum_id WHERE user_id!=1"
    row = database.execute(query).fetchone()
    for verb in ("edit", "delete"):
        path = f"__REDDIT__/f/{row['name']}/{row['id']}/-/{verb}"
        assert reader.goto(path, "POST", {"title": ["Mine"]}).status == 403


def test_a_form_of_a_megabyte_is_cut_and_kept(reader):
    form = {"title": ["x" * 10**6], "forum": ["books"], "body": ["y" * 10**6]}
    reader.goto("__REDDIT__/submit", "POST", form)
    assert reader.status == 200
    assert len(reader.body) < 20_000


def test_comments_that_are_disliked_count_as_a_reader_of_the_pages_counts_them(reader):
    for task in [t for t in TASKS["reddit"] if t.config["intent_template_id"] == 1004][:5]:
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
