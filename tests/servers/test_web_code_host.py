"""The embedded code host: its pages, its forms, its tasks."""

from __future__ import annotations

import pytest

from agentgym_servers.web.sites.code_host.site import CodeHost, logged_in_cookies
from agentgym_servers.web.sites.code_host.tasks import tasks
from agentgym_servers.web.sites.pages import freeze
from page_reader import Sites, asked, crawl, given_junk, proved, solve, splits_by_template

ACCOUNT = "byteblaze"
OWN = "__GITLAB__/byteblaze/acorn-parser"
TASKS = tasks(0)


@pytest.fixture(scope="module")
def sites():
    return Sites({"gitlab": CodeHost()}, {"gitlab": logged_in_cookies(ACCOUNT)})


@pytest.fixture
def reader(sites):
    return sites.open()


def test_equal_seeds_make_equal_hosts_and_others_do_not():
    first, second, third = (freeze(CodeHost().make_database(seed)) for seed in (3, 3, 4))
    assert first == second
    assert first != third
    assert len(first) < 600_000


def test_every_link_of_the_code_host_leads_to_a_page(reader):
    assert len(crawl(reader, "__GITLAB__", 1200)) > 1000


def test_who_is_not_logged_in_sees_projects_but_changes_none(reader):
    reader.cookies.clear()
    assert reader.goto(OWN).status == 200
    reader.goto(f"{OWN}/-/issues", "POST", {"issue[title]": ["No"]})
    assert reader.url.endswith("/users/sign_in")


def test_the_sign_in_form_has_the_labels_that_webarena_fills_in(reader):
    reader.cookies.clear()
    reader.goto("__GITLAB__/users/sign_in")
    reader.labelled("Username or email").set("value", ACCOUNT)
    reader.labelled("Password").set("value", "hello1234")
    reader.click("button", "Sign in")
    assert "Your projects" in reader.body


def test_what_one_session_writes_no_other_sees(sites):
    one, other = sites.open(), sites.open()
    one.goto(f"{OWN}/-/issues", "POST", {"issue[title]": ["Only here"]})
    assert "Only here" in one.goto(f"{OWN}/-/issues").body
    assert "Only here" not in other.goto(f"{OWN}/-/issues").body


def test_only_maintainers_invite_and_merge(reader):
    theirs = [
        f"{row['space']}/{row['name']}"
        for row in CodeHost()
        .make_database(0)
        .execute(
            "SELECT * FROM project WHERE id NOT IN (SELECT project_id FROM member WHERE user_id=1)"
        )
    ]
    where = f"__GITLAB__/{theirs[0]}/-"
    form = {"username": ["ada.brandt"], "role": ["Guest"]}
    assert reader.goto(f"{where}/project_members", "POST", form).status == 403
    assert reader.goto(f"{where}/merge_requests/1/merge", "POST").status == 403


def test_a_private_project_is_seen_by_its_members_alone(reader):
    form = {"project[name]": ["hidden"], "project[visibility]": ["Private"]}
    assert reader.goto("__GITLAB__/projects", "POST", form).status == 200
    reader.cookies.clear()
    assert reader.goto("__GITLAB__/byteblaze/hidden").status == 404
    assert "byteblaze/hidden" not in reader.goto("__GITLAB__/explore").body


@given_junk
def test_garbage_is_answered_and_never_raises(reader, junk):
    names = ("issue[title]", "note", "role", "username", "label", "search", "state", "page")
    more = ("project[name]", "file_name", "milestone[title]", "title", "sort", "label_name[]")
    own = "/byteblaze/acorn-parser/-/"
    parts = ("issues/{}", "issues/{}/close", "issues/1/{}", "merge_requests/{}", "milestones/{}")
    files = ("blob/main/{}", "raw/main/a/{}", "edit/main/{}", "commits/{}", "files", "toggle_star")
    lists = (
        "issues",
        "merge_requests",
        "project_members",
        "milestones",
        "forks",
        "merge_requests/1/{}",
    )
    fixed = ("/{}", "/{}/{}", "/users/{}/starred", "/projects", "/-/profile", "/explore", "/search")
    for path in (*fixed, "/dashboard/todos/{}/done", *(own + p for p in (*parts, *files, *lists))):
        for method in ("GET", "POST", "DELETE"):
            fields = {name: [junk] for name in (*names, *more)}
            answer = asked(reader, method, "code.test", path.format(junk, junk), fields)
            assert answer.status in (200, 302, 400, 403, 404)


def test_the_code_host_has_its_templates_of_which_a_quarter_is_for_testing():
    splits = splits_by_template(TASKS)
    assert len(splits) == 27
    assert list(splits.values()).count("test") == 7
    assert len(TASKS) >= 400


@pytest.mark.parametrize("template", sorted({t.config["intent_template_id"] for t in TASKS}))
def test_the_expert_earns_the_reward_and_doing_nothing_does_not(sites, template):
    for task in TASKS:
        if task.config["intent_template_id"] == template:
            proved(sites, task)


def test_tasks_of_a_seed_are_always_the_same():
    assert tasks(0) == TASKS


def test_what_is_to_be_counted_are_the_rows_that_the_expert_sees(sites):
    for task in [t for t in TASKS if t.config["intent_template_id"] in (1102, 1106)]:
        reader = sites.open()
        answer = solve(reader, task)
        assert str(len(reader.page.xpath("//main//tbody/tr"))) == answer


def test_a_file_has_a_path_of_names_and_no_way_up(reader):
    for path in ("../x", "a/../b", "a//b", "/a", "a/", ".", "a/b/c/d", "a b"):
        form = {"file_name": [path], "file_text": ["x"]}
        assert reader.goto(f"{OWN}/-/files", "POST", form).status == 400
    for path in (".ignore", "a/b/c", "x.txt"):
        form = {"file_name": [path], "file_text": ["x"]}
        assert reader.goto(f"{OWN}/-/files", "POST", form).url.endswith(f"/main/{path}")
