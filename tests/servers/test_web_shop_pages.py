"""What the sites share: routes, what a client sent, and databases as bytes."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from agentgym_servers.web.sites.pages import (
    MAX_FIELD,
    Router,
    clean,
    first,
    freeze,
    link,
    make_database,
    redirect,
    whole,
)
from agentgym_servers.web.sites.shop.shopper import cents
from agentgym_servers.web.sites.site import Request, Response
from shop_reader import Reader, shop_session

ROUTES = Router()
NO_NUMBERS = ("-1", "", "1.0", "٣", "9" * 17, "9" * 400, " 1", "1\n")
NO_PRICES = ("", "-1", "1.234", ".5", "1e3", "999999", "1\n")


@ROUTES.get("/fixed/")
def fixed(visit):
    return Response(f"fixed {visit.query('q', 'nothing')}")


@ROUTES.get("/a.b/{word}/")
@ROUTES.post("/c/{word}")
def spoken(visit):
    visit.run("INSERT INTO word VALUES (?)", visit.argument("word"))
    return Response(f"{visit.argument('word')} {visit.number('word')}")


@pytest.fixture
def database():
    with closing(make_database("CREATE TABLE word (text TEXT)", {})) as made:
        yield made


@pytest.fixture
def answer(database):
    def answer(method, path, **query):
        response = ROUTES.answer(database, Request(method, "x.test", path, query))
        return response and response.body

    return answer


def test_a_route_takes_its_path_with_and_without_a_slash_at_the_end(answer):
    assert answer("GET", "/fixed") == answer("GET", "/fixed/") == "fixed nothing"
    assert answer("HEAD", "/fixed", q=["so", "not"]) == "fixed so"


def test_a_word_in_braces_is_one_segment_of_the_path(answer):
    assert answer("GET", "/a.b/12") == "12 12"
    assert answer("POST", "/c/x y/") == "x y 0"
    assert answer("GET", "/aXb/12") is None
    assert answer("GET", "/a.b/12/13") is None
    assert answer("POST", "/fixed") is None


def test_what_a_handler_changes_is_committed(answer, database):
    answer("POST", "/c/hello")
    assert not database.in_transaction
    assert [tuple(row) for row in database.execute("SELECT text FROM word")] == [("hello",)]


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("0", 0), ("+3", 3), *((text, None) for text in NO_NUMBERS)],
)
def test_a_whole_number_is_ascii_digits_within_bounds(text, number):
    assert whole(text) == number


@pytest.mark.parametrize(
    ("text", "amount"),
    [("12", 1200), ("12.5", 1250), ("$12.05", 1205), *((text, None) for text in NO_PRICES)],
)
def test_a_price_is_read_as_cents(text, amount):
    assert cents(text) == amount


def test_text_that_no_database_could_hold_is_made_harmless():
    assert clean("a\ud800b\0c") == "a?bc"
    assert len(clean("x" * 10_000)) == MAX_FIELD
    assert first({"a": [" b ", "c"], "e": []}, "a") == "b"
    assert first({"e": []}, "e", "f") == "f"


def test_a_link_leaves_empty_fields_out_and_a_redirect_sets_cookies():
    assert link("/a", {"b": "c d", "e": "", "f": 0}) == "/a?b=c+d&f=0"
    assert link("/a", {"b": ""}) == "/a"
    response = redirect("/a", {"b": None})
    assert (response.status, response.location, response.cookies) == (302, "/a", {"b": None})


def test_a_database_comes_back_from_its_bytes():
    schema = "CREATE TABLE word (id INTEGER, text TEXT)"
    with closing(make_database(schema, {"word": [(1, "a")]})) as database:
        blob = freeze(database)
    with closing(sqlite3.connect(":memory:")) as restored:
        restored.deserialize(blob)
        assert restored.execute("SELECT * FROM word").fetchall() == [(1, "a")]


def test_pages_have_what_the_tasks_of_webarena_itself_look_for():
    reader = Reader(shop_session()).goto("__SHOPPING__/newsletter/manage/")
    assert len(reader.page.xpath("//input[@title='General Subscription']")) == 1
    assert reader.goto("__SHOPPING_ADMIN__/customer/index/").status == 200
    reader.goto("__SHOPPING_ADMIN__/sales/order/?status=Suspected+Fraud")
    (current,) = reader.page.xpath("//div[@class='admin__data-grid-filters-current']")
    assert "Suspected Fraud" in current.text_content()
    assert len(
        reader.goto("__SHOPPING__/contact").page.xpath("//*[@title='What\u2019s on your mind?']")
    )
