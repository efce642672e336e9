"""The embedded code host: its forms, and who may do what."""

from __future__ import annotations

from own_sites import DEVELOPER, MADE, TASKS

from page_reader import solve

OWN = "__GITLAB__/byteblaze/acorn-parser"


def test_who_is_not_logged_in_sees_projects_but_changes_none(reader):
    reader.cookies.clear()
    assert reader.goto(OWN).status == 200
    reader.goto(f"{OWN}/-/issues", "POST", {"issue[title]": ["No"]})
    assert reader.url.endswith("/users/sign_in")


def test_the_sign_in_form_has_the_labels_that_webarena_fills_in(reader):
    reader.cookies.clear()
    reader.goto("__GITLAB__/users/sign_in")
    reader.labelled("Username or email").set("value", DEVELOPER)
    reader.labelled("Password").set("value", "hello1234")
    reader.click("button", "Sign in")
    assert "Your projects" in reader.body


def test_only_maintainers_invite_and_merge(reader):
    theirs = [
        f"{row['space']}/{row['name']}"
        for row in MADE["gitlab"]
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


def test_what_is_to_be_counted_are_the_rows_that_the_expert_sees(sites):
    for task in [t for t in TASKS["gitlab"] if t.config["intent_template_id"] in (1102, 1106)]:
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
