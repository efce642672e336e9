"""What the embedded sites have in common: links, odd requests, seeds, tasks and their experts."""

from __future__ import annotations

import pytest
from own_sites import MADE, TASKS, all_sites

from agentgym_servers.web.sites.code_host import tasks as code_tasks
from agentgym_servers.web.sites.forum import tasks as forum_tasks
from agentgym_servers.web.sites.pages import freeze
from page_reader import asked, crawl, given_junk, proved, splits_by_template

SAMPLE = pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
OWN_PROJECT = "__GITLAB__/byteblaze/acorn-parser"
TEMPLATES = [
    (name, template)
    for name, tasks in TASKS.items()
    for template in sorted({task.config["intent_template_id"] for task in tasks})
]
JUNK = {
    "reddit": (
        "forum.test",
        (
            "/f/{}", "/f/books/{}", "/f/books/{}/x", "/user/{}", "/sv/{}", "/{}", "/all/{}",
            "/f/books/1/-/comment/{}", "/f/{}/1/-/edit", "/f/{}/subscribe", "/user/{}/comments",
            "/", "/submit", "/login", "/create_forum", "/search", "/forums", "/logout",
        ),
        ("title", "forum", "body", "comment", "choice", "back", "name", "q", "page", "url"),
    ),
    "gitlab": (
        "code.test",
        (
            "/{}", "/{}/{}", "/users/{}/starred", "/projects", "/-/profile", "/explore", "/search",
            "/dashboard/todos/{}/done",
            *(
                f"/byteblaze/acorn-parser/-/{path}"
                for path in (
                    "issues/{}", "issues/{}/close", "issues/1/{}", "merge_requests/{}",
                    "milestones/{}", "blob/main/{}", "raw/main/a/{}", "edit/main/{}",
                    "commits/{}", "files", "toggle_star", "issues", "merge_requests",
                    "project_members", "milestones", "forks", "merge_requests/1/{}",
                )
            ),
        ),
        (
            "issue[title]", "note", "role", "username", "label", "search", "state", "page",
            "project[name]", "file_name", "milestone[title]", "title", "sort", "label_name[]",
        ),
    ),
    "wikipedia": ("wiki.test", ("/", "/search", "/A/{}", "/{}"), ("pattern",)),
    "map": (
        "map.test",
        ("/", "/search", "/directions", "/way/{}", "/node/{}", "/{}", "/way/{}/x"),
        ("query", "from", "to", "by"),
    ),
    "homepage": ("home.test", ("/{}", "/links/{}", "/password.html/{}"), ("q",)),
}  # fmt: skip
"""Site -> its host, its paths, and the names of fields that its forms have."""
FORMS, READ_ONLY = (200, 302, 400, 403, 404), (200, 404)
STATUSES = {
    "reddit": FORMS,
    "gitlab": FORMS,
    "wikipedia": READ_ONLY,
    "map": READ_ONLY,
    "homepage": READ_ONLY,
}
"""Site -> the statuses of its answers."""
BOUNDS = {
    # Site -> most bytes of its data, and how many templates, templates for testing, and tasks.
    "reddit": (600_000, 20, 5, 300),
    "gitlab": (600_000, 27, 7, 400),
    "wikipedia": (None, 8, 2, 100),
    "map": (None, 9, 2, 150),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_equal_seeds_make_equal_data_and_others_do_not(name):
    first, second, third = (freeze(MADE[name].make_database(seed)) for seed in (3, 3, 4))
    assert first == second
    assert first != third
    most = BOUNDS[name][0]
    assert most is None or len(first) < most


@pytest.mark.parametrize(
    ("start", "followed", "found"),
    [
        ("__REDDIT__", 150, 150),
        ("__GITLAB__", 150, 150),
        pytest.param("__REDDIT__", 900, 900, marks=pytest.mark.slow),
        pytest.param("__GITLAB__", 1200, 1001, marks=pytest.mark.slow),
        ("__MAP__", 500, 151),
        ("__HOMEPAGE__/", 10, 2),
    ],
)
def test_every_link_leads_to_a_page(start, followed, found):
    pages = len(crawl(all_sites().open(), start, followed))
    assert pages == found if start == "__HOMEPAGE__/" else pages >= found


@pytest.mark.parametrize(
    ("page", "form"),
    [
        ("__REDDIT__/f/books/new", {"title": ["Only here"], "forum": ["books"], "body": ["x"]}),
        (f"{OWN_PROJECT}/-/issues", {"issue[title]": ["Only here"]}),
    ],
)
def test_what_one_session_writes_no_other_sees(page, form):
    one, other = all_sites().open(), all_sites().open()
    one.goto("__REDDIT__/submit" if "forum" in form else page, "POST", form)
    assert "Only here" in one.goto(page).body
    assert "Only here" not in other.goto(page).body


@given_junk
@pytest.mark.parametrize("name", JUNK)
def test_garbage_is_answered_and_never_raises(name, junk):
    host, paths, names = JUNK[name]
    reader = all_sites().open()
    for path in paths:
        for method in ("GET", "POST", "PUT", "DELETE"):
            fields = {key: [junk] for key in names}
            answer = asked(reader, method, host, path.format(junk, junk), fields)
            assert answer.status in STATUSES[name]


@pytest.mark.parametrize("name", BOUNDS)
def test_a_site_has_its_templates_of_which_a_quarter_is_for_testing(name):
    _, templates, for_testing, fewest = BOUNDS[name]
    splits = splits_by_template(TASKS[name])
    assert (len(splits), list(splits.values()).count("test")) == (templates, for_testing)
    assert len(TASKS[name]) >= fewest


def test_tasks_of_a_seed_are_always_the_same():
    assert forum_tasks.tasks(0) == TASKS["reddit"]
    assert code_tasks.tasks(0) == TASKS["gitlab"]


@SAMPLE
@pytest.mark.parametrize(("name", "template"), TEMPLATES)
def test_the_expert_earns_the_reward_and_doing_nothing_does_not(name, template, every):
    tasks = [task for task in TASKS[name] if task.config["intent_template_id"] == template]
    for task in tasks[::every]:
        proved(all_sites(), task)
