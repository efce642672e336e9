"""The functions that WebArena's tasks call by name, over a page and a site's REST interface."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

import msgspec

from agentgym_env.errors import AgentGymError
from agentgym_servers.web.evaluation.page_access import JsonValue, Page, Rest, ScriptError

_CALL: Final = re.compile(r"func:(\w+)\((.*)\)\s*", re.DOTALL)
_ARGUMENT: Final = re.compile(r"""\s*(?:'([^'\\]*)'|"([^"\\]*)"|(__page__))\s*(?:,|\Z)""")
_ACCOUNT_NAMES: Final = (
    """[...document.querySelectorAll("td[data-label='Account'] """
    """span.gl-avatar-labeled-sublabel")].map(name => name.outerText)"""
)
_ROLES: Final = (
    """[...document.querySelectorAll("td.col-max-role span")].map(role => role.outerText)"""
)
_ARITY: Final = {
    "reddit_get_post_url": 1,
    "shopping_get_latest_order_url": 0,
    "shopping_get_sku_latest_review_author": 1,
    "shopping_get_sku_latest_review_rating": 1,
    "gitlab_get_project_memeber_role": 2,
}


class UnknownFunction(AgentGymError, ValueError):
    """A task calls a function that WebArena does not have, or calls it wrongly."""


class RestMissing(AgentGymError):
    """A task asks a shop's REST interface and none was given, so there is no verdict on it."""


class Call(msgspec.Struct, frozen=True):
    """A call such as `func:reddit_get_post_url('__last_url__')`."""

    name: str
    arguments: tuple[str, ...]


def read_call(text: str) -> Call:
    """Read a call of a known function with quoted arguments, or `__page__`; nothing is run."""
    found = _CALL.fullmatch(text)
    arguments: list[str] = []
    if found is not None:
        at = 0
        while (one := _ARGUMENT.match(found[2], at)) is not None and at < len(found[2]):
            arguments.append(next(group for group in one.groups() if group is not None))
            at = one.end()
        if found[2][at:].strip() == "" and _ARITY.get(found[1]) == len(arguments):
            return Call(found[1], tuple(arguments))
    raise UnknownFunction(f"{text!r} calls no known function; there are {', '.join(_ARITY)}.")


def call_function(call: Call, page: Page, rest: Rest | None, shop: str) -> str:
    """The value of a call on a page; `shop` is the shop's base address."""
    match call.name:
        case "reddit_get_post_url":
            return reddit_get_post_url(call.arguments[0].replace("__last_url__", page.url))
        case "gitlab_get_project_memeber_role":
            return gitlab_get_project_member_role(page, call.arguments[1])
    if rest is None:
        raise RestMissing(f"{call.name} calls the shop's REST interface; give `rest`.")
    match call.name:
        case "shopping_get_latest_order_url":
            return shopping_get_latest_order_url(rest, shop)
        case "shopping_get_sku_latest_review_author":
            return shopping_get_sku_latest_review_author(rest, call.arguments[0])
        case _:
            return shopping_get_sku_latest_review_rating(rest, call.arguments[0])


def reddit_get_post_url(url: str) -> str:
    """The address of the submission that a forum page belongs to, or the address itself."""
    parts = urlsplit(url)
    segments = parts.path.split("/")
    if len(segments) < 4 or segments[1] != "f":
        return url
    return f"{parts.scheme}://{parts.netloc}/f/{segments[2]}/{segments[3]}/"


def shopping_get_latest_order_url(rest: Rest, shop: str) -> str:
    """The page of the order made last; empty where there is no order."""
    answer = rest.get(
        "shopping",
        "/rest/V1/orders",
        {
            "searchCriteria[sortOrders][0][field]": "created_at",
            "searchCriteria[sortOrders][0][direction]": "DESC",
            "searchCriteria[pageSize]": "1",
        },
    )
    orders = answer.get("items") if isinstance(answer, dict) else None
    if not isinstance(orders, list) or not orders:
        return ""
    number = _field(orders[0], "increment_id")
    if not number.isdecimal():
        raise AgentGymError(f"An order's increment_id has to be a number, not {number[:200]!r}.")
    return f"{shop}/sales/order/view/order_id/{int(number)}/"


def shopping_get_sku_latest_review_author(rest: Rest, sku: str) -> str:
    """Who wrote a product's last review; empty where there is none."""
    reviews = _reviews(rest, sku)
    return _field(reviews[-1], "nickname") if reviews else ""


def shopping_get_sku_latest_review_rating(rest: Rest, sku: str) -> str:
    """The percentage that a product's last review gives; empty where there is none."""
    reviews = _reviews(rest, sku)
    if not reviews:
        return ""
    last = reviews[-1]
    ratings = last.get("ratings") if isinstance(last, dict) else None
    if not isinstance(ratings, list) or not ratings:
        raise AgentGymError(f"A review of {sku} has no ratings: {str(last)[:200]}")
    return _field(ratings[0], "percent")


def gitlab_get_project_member_role(page: Page, account: str) -> str:
    """The role of `@account` on a page of a project's members; empty where it is not there."""
    try:
        names, roles = page.evaluate(_ACCOUNT_NAMES), page.evaluate(_ROLES)
    except ScriptError:
        return ""
    if not isinstance(names, list) or not isinstance(roles, list):
        return ""
    place = names.index(f"@{account}") if f"@{account}" in names else len(roles)
    return str(roles[place]) if place < len(roles) else ""


def _reviews(rest: Rest, sku: str) -> list[JsonValue]:
    answer = rest.get("shopping", f"/rest/V1/products/{sku}/reviews", {})
    if not isinstance(answer, list):
        raise AgentGymError(f"The reviews of {sku} are no list: {str(answer)[:200]}")
    return answer


def _field(item: JsonValue, name: str) -> str:
    if not isinstance(item, dict) or name not in item:
        raise AgentGymError(f"The shop's answer has no {name}: {str(item)[:200]}")
    return str(item[name])
