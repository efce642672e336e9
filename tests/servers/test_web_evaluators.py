"""WebArena's rules, one by one, and against the verdicts of its own evaluators."""

import json
import sqlite3
from pathlib import Path

import msgspec
import pytest

from agentgym_env.errors import AgentGymError
from agentgym_servers.web.evaluation.evaluators import (
    JudgeMissing,
    JudgeUnclear,
    clean_answer,
    evaluate,
    includes_choice,
    match_page,
    must_include,
    url_match,
)
from agentgym_servers.web.evaluation.page_access import ScriptError, UnsupportedLocator
from agentgym_servers.web.evaluation.site_functions import RestMissing, UnknownFunction
from agentgym_servers.web.sites.rest import SiteRest
from agentgym_servers.web.sites.site import Response, SiteSession
from agentgym_servers.web.sites.site_map import embedded_sites
from agentgym_servers.web.tasks.tasks import InvalidTask, PageCheck, read_tasks
from web_pages import TablePages, TableRest, task_json

SHOP = "http://shop.test"
FROZEN = json.loads(
    (Path(__file__).parent / "data" / "webarena_verdicts.json").read_text(encoding="utf-8")
)
"""[inputs ..., score] of libwebarena's own evaluators on inputs of our own; None: they raised."""


def judge_task(answer="", pages=None, rest=None, judge=None, intent="How many?", **evaluation):
    task = read_tasks(json.dumps([task_json(intent=intent, eval=evaluation)]))[0]
    pages = TablePages(pages or {SHOP: ""})
    return evaluate(task, answer, embedded_sites(), pages, rest=rest, judge=judge)


def page_item(locator="", url="last", **required):
    return {"url": url, "locator": locator, "required_contents": required}


def judge_page(item, pages, rest=None):
    return judge_task(
        pages=pages, rest=rest, eval_types=["program_html"], program_html=[item]
    ).score


def test_answers_score_as_in_webarena():
    others = [
        row
        for row in FROZEN["answers"]
        if judge_task(row[1], reference_answers=row[0]).score != row[2]
    ]
    assert len(FROZEN["answers"]) > 700 and not others


def test_a_judge_s_replies_count_as_in_webarena():
    def score(rules, answer, reply):
        try:
            return judge_task(answer, judge=lambda prompt: reply, reference_answers=rules).score
        except JudgeUnclear:
            return None

    # Where another rule has failed, an unclear judge is not even asked.
    others = [
        row
        for row in FROZEN["judged"]
        if score(*row[:3]) not in ((row[3],) if row[3] is not None else (None, 0.0))
    ]
    assert len(FROZEN["judged"]) > 100 and not others


def test_addresses_score_as_in_webarena():
    others = [row for row in FROZEN["urls"] if url_match(row[0], row[1]) != bool(row[2])]
    assert len(FROZEN["urls"]) > 400 and not others


class FrozenPage:
    url = SHOP

    def __init__(self, locator, found):
        self.locator, self.found = locator, found

    def current(self):
        return self

    def content(self):
        return self.found

    def evaluate(self, expression):
        if self.locator == "error":
            raise ScriptError("there is no such element")
        return self.found


def test_what_stands_on_a_page_scores_as_in_webarena():
    def passes(required, locator, found):
        item = msgspec.convert(page_item(locator and "document.title", **required), PageCheck)
        verdicts = match_page(item, FrozenPage(locator, found), None, SHOP)
        return all(one.passed for one in verdicts)

    others = [row for row in FROZEN["pages"] if passes(*row[:3]) != bool(row[3])]
    assert len(FROZEN["pages"]) > 300 and not others


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        (" Blue ", "blue"),
        ('"Blue"', "blue"),
        ("'\"Blue\"'", '"blue"'),
        ("'blue\"", "'blue\""),
        ('"', ""),
    ],
)
def test_an_answer_loses_one_pair_of_quotes_and_its_case(text, cleaned):
    assert clean_answer(text) == cleaned


@pytest.mark.parametrize(
    ("reference", "answer", "as_word", "included"),
    [
        ("5", "25", True, False),
        ("5", "25", False, True),
        ("5", "It has 5 stars", True, True),
        ("5", "$5.", True, True),
        ("5", "5, 6", True, True),
        ("5", "5.0", True, False),
        ("55", "155", True, True),
    ],
)
def test_a_lone_character_must_be_a_word(reference, answer, as_word, included):
    assert must_include(reference, answer, as_word=as_word) is included


def test_two_references_are_looked_for_inside_words():
    assert judge_task("25 mugs", reference_answers={"must_include": ["5", "mug"]}).score == 1.0


def test_a_page_offers_choices():
    assert includes_choice("cup |OR| mug", "a Mug")
    assert not includes_choice("cup |OR| glass", "a mug")


@pytest.mark.parametrize(
    ("reference", "url", "matches"),
    [
        (f"{SHOP}/p", f"{SHOP}/p/4", True),
        (f"{SHOP}/p/4", f"{SHOP}/p", False),
        (f"{SHOP}/s?q=a", f"{SHOP}/s?x=1&q=a", True),
        (f"{SHOP}/s?q=a", f"{SHOP}/s?q=b", False),
        (f"{SHOP}/s?q=a |OR| {SHOP}/s?q=b", f"{SHOP}/s?q=b", True),
        (f"{SHOP}/s?q=a |OR| {SHOP}/t", f"{SHOP}/t", False),
        (f"{SHOP}/", f"{SHOP}", True),
        ("http://shop.test/p", "https://shop.test/p", True),
    ],
)
def test_a_reference_is_part_of_the_address_and_its_query_is_there(reference, url, matches):
    assert url_match(reference, url) is matches


def test_without_a_judge_there_is_no_verdict_even_on_a_perfect_answer():
    for rules in ({"fuzzy_match": "N/A"}, {"fuzzy_match": ["N/A"]}):
        with pytest.raises(JudgeMissing, match="Task 7"):
            judge_task("N/A", reference_answers=rules)


def test_not_achievable_needs_no_judge_where_it_is_said_so():
    def never(prompt):
        raise AssertionError(prompt)

    assert judge_task("'n/a'", judge=never, reference_answers={"fuzzy_match": "N/A"}).score == 1.0


def test_another_reason_is_held_against_the_note():
    asked = []

    def judge(prompt):
        asked.append(prompt)
        return "same"

    rules = {"reference_answers": {"fuzzy_match": "N/A"}, "string_note": "sold {out}"}
    assert judge_task("None are left", judge=judge, intent="Buy {it}", **rules).score == 1.0
    assert all(text in asked[0] for text in ("Buy {it}", "sold {out}", "none are left"))


def test_the_judge_is_asked_for_each_reference_and_not_after_a_failure():
    replies = ["correct", "partially correct", "correct"]

    def judge(prompt):
        return replies.pop(0)

    rules = {"fuzzy_match": ["a", "b", "c"]}
    judged = judge_task("x", judge=judge, reference_answers=rules)
    assert (judged.score, replies) == (0.0, ["correct"])


def test_the_score_is_the_product_of_all_types():
    both = {
        "eval_types": ["string_match", "url_match"],
        "reference_answers": {"exact_match": "5"},
        "reference_url": "__SHOPPING__/cart",
    }
    at_cart = {f"{SHOP}/cart": ""}
    assert judge_task("5", at_cart, **both).score == 1.0
    assert judge_task("6", at_cart, **both).score == 0.0
    assert judge_task("5", {f"{SHOP}/p": ""}, **both).score == 0.0


def test_a_verdict_says_what_was_expected_where_and_what_was_found():
    judged = judge_task("6", reference_answers={"must_include": ["5", "6"]})
    assert [(one.expected, one.found, one.passed) for one in judged.verdicts] == [
        ("5", "6", False),
        ("6", "6", True),
    ]


def test_another_page_is_opened_afresh_and_the_last_one_is_not():
    pages = TablePages({f"{SHOP}/a": "<p id=x>A</p>", f"{SHOP}/b": "<p id=x>B</p>"})
    locator = "document.querySelector('#x').outerText"
    items = [page_item(locator, exact_match="A"), page_item(locator, f"{SHOP}/b", exact_match="b")]
    task = read_tasks(
        json.dumps([task_json(eval={"eval_types": ["program_html"], "program_html": items})])
    )[0]
    assert evaluate(task, "", embedded_sites(), pages).score == 1.0
    assert pages.opened == [f"{SHOP}/b"]


def test_entities_are_read_and_a_missing_element_is_an_empty_text():
    pages = {SHOP: "<p>Tom &amp;amp; Jerry</p>"}
    assert judge_page(
        page_item("document.querySelector('p').outerText", exact_match="Tom & Jerry"), pages
    )
    assert judge_page(page_item("", must_include=["<p>Tom & Jerry</p>"]), pages) == 0.0
    assert judge_page(page_item("", must_include=["Tom &amp; Jerry"]), pages) == 1.0
    assert (
        judge_page(page_item("document.querySelector('b').outerText", exact_match="x"), pages)
        == 0.0
    )


def test_a_locator_that_cannot_be_evaluated_is_no_verdict():
    with pytest.raises(UnsupportedLocator):
        judge_page(page_item("document.cookie", exact_match="x"), {SHOP: ""})
    with pytest.raises(UnsupportedLocator):
        judge_page(
            {
                **page_item("", exact_match="x", url="last"),
                "locator": "document.title",
                "prep_actions": ["document.querySelector('a').click()"],
            },
            {SHOP: "<a>x</a>"},
        )
    with pytest.raises(InvalidTask, match="is none"):
        judge_page(page_item("window.x", exact_match="x"), {SHOP: ""})


@pytest.mark.parametrize(
    ("url", "submission"),
    [
        ("http://forum.test/f/books/12/slug/-/comment/3", "http://forum.test/f/books/12/"),
        ("http://forum.test/f/books/12", "http://forum.test/f/books/12/"),
        ("http://forum.test/f/books", "http://forum.test/f/books"),
        ("http://forum.test/user/a/b", "http://forum.test/user/a/b"),
    ],
)
def test_a_submission_is_found_from_any_of_its_pages(url, submission):
    item = page_item("", "func:reddit_get_post_url('__last_url__')", must_include=["well said"])
    assert judge_page(item, {url: "", submission: "well said"}) == 1.0


def test_the_latest_order_s_page_is_opened():
    item = page_item("", "func:shopping_get_latest_order_url()", must_include=["Mug"])
    rest = TableRest({"/rest/V1/orders": {"items": [{"increment_id": "000000187"}]}})
    pages = {SHOP: "", f"{SHOP}/sales/order/view/order_id/187/": "Mug"}
    assert judge_page(item, pages, rest) == 1.0
    assert rest.asked[0][2]["searchCriteria[sortOrders][0][direction]"] == "DESC"
    assert judge_page(item, {SHOP: "Mug"}, TableRest({"/rest/V1/orders": {"items": []}})) == 0.0


def test_the_last_review_of_a_product_tells_its_author_and_its_rating():
    review = {"nickname": "Emma", "ratings": [{"rating_name": "Rating", "percent": 80}]}
    rest = TableRest({"/rest/V1/products/S1/reviews": [{"nickname": "Bob"}, review]})
    none = TableRest({"/rest/V1/products/S1/reviews": []})
    for name, wanted in (("author", "emma"), ("rating", "80")):
        item = page_item(f"func:shopping_get_sku_latest_review_{name}('S1')", exact_match=wanted)
        assert judge_page(item, {SHOP: ""}, rest) == 1.0
        assert judge_page(item, {SHOP: ""}, none) == 0.0


def test_a_member_s_role_stands_in_the_place_of_the_name():
    row = (
        "<tr><td data-label='Account'><span class='gl-avatar-labeled-sublabel'>@{}</span></td>"
        "<td class='col-max-role'><span>{}</span></td></tr>"
    )
    pages = {SHOP: f"<table>{row.format('bob', 'Owner')}{row.format('emma', 'Guest')}</table>"}
    item = "func:gitlab_get_project_memeber_role(__page__, '{}')"
    assert judge_page(page_item(item.format("emma"), exact_match="Guest"), pages) == 1.0
    assert judge_page(page_item(item.format("bob"), exact_match="Guest"), pages) == 0.0
    assert judge_page(page_item(item.format("eve"), exact_match="Guest"), pages) == 0.0


@pytest.mark.parametrize(
    "call",
    [
        "func:open('/etc/passwd')",
        "func:reddit_get_post_url(__import__('os'))",
        "func:reddit_get_post_url('a', 'b')",
        "func:reddit_get_post_url('a' 'b')",
        "func:shopping_get_latest_order_url",
    ],
)
def test_only_webarena_s_functions_are_called_and_nothing_is_run(call):
    with pytest.raises(UnknownFunction):
        judge_page(page_item(call, exact_match="x"), {SHOP: ""})


def test_a_shop_that_cannot_be_asked_is_no_verdict():
    with pytest.raises(RestMissing, match="give `rest`"):
        judge_page(
            page_item("", "func:shopping_get_latest_order_url()", exact_match="x"), {SHOP: ""}
        )


def test_the_embedded_shop_s_interface_is_asked_in_the_episode_s_own_session():
    class Shop:
        def make_database(self, seed):
            database = sqlite3.connect(":memory:")
            database.execute("CREATE TABLE product (id)")
            return database

        def answer(self, database, request):
            if request.path != "/rest/V1/orders":
                return Response("<p>no</p>", 404 if request.path == "/none" else 200)
            return Response(json.dumps({"items": [request.query["size"]]}))

    shop = Shop()
    rest = SiteRest(SiteSession({"shop.test": shop}, {shop: shop.make_database(0).serialize()}))
    assert rest.get("shopping", "/rest/V1/orders", {"size": "1"}) == {"items": [["1"]]}
    for path in ("/none", "/page"):
        with pytest.raises(AgentGymError, match=f"shopping gives no JSON at {path}"):
            rest.get("shopping", path, {})
