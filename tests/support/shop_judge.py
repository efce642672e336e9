"""WebArena's rules as far as the shop's tasks use them, over the reader's pages."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit

from shop_reader import Reader, placed, text_of

TOKENS = {
    "tag": re.compile(r"^([a-z0-9]+)"),
    "class": re.compile(r"\.([\w-]+)"),
    "id": re.compile(r"#([\w-]+)"),
    "name": re.compile(r'\[name="([^"]+)"\]'),
}


def solved(config, reader):
    """Whether the reader's episode, which has ended, did what the task asks."""
    rules = config["eval"]
    verdicts = {
        "string_match": lambda: string_matches(rules["reference_answers"], reader.stopped or ""),
        "url_match": lambda: url_matches(rules["reference_url"], reader.url),
        "program_html": lambda: all(check_holds(one, reader) for one in rules["program_html"]),
    }
    return all(verdicts[kind]() for kind in rules["eval_types"])


def string_matches(reference, answer):
    (rule, wanted) = next(iter(reference.items()))
    return contents_match({rule: wanted}, answer)


def contents_match(required, text):
    if "exact_match" in required:
        return required["exact_match"].strip().lower() == text.strip().lower()
    return all(one.lower() in text.lower() for one in required["must_include"])


def url_matches(reference, url):
    golds = [urlsplit(placed(one)) for one in reference.split(" |OR| ")]
    seen = urlsplit(url)
    base = (seen.netloc + seen.path).rstrip("/")
    if not any((gold.netloc + gold.path).rstrip("/") in base for gold in golds):
        return False
    asked = parse_qs(seen.query, keep_blank_values=True)
    allowed = {}
    for gold in golds:
        for name, values in parse_qs(gold.query).items():
            allowed.setdefault(name, set()).update(values)
    return all(values & set(asked.get(name, ())) for name, values in allowed.items())


def check_holds(check, reader):
    url, locator = check["url"], check["locator"]
    if locator.startswith("func:"):
        return contents_match(check["required_contents"], of_latest_review(locator, reader))
    page = reader
    if url != "last":
        page = Reader(reader.session)
        page.cookies = reader.cookies
        page.goto(latest_order(reader) if url.startswith("func:") else url)
    return contents_match(check["required_contents"], located(locator, page.page))


def latest_order(reader):
    prefix = "searchCriteria%5BsortOrders%5D%5B0%5D"
    query = f"{prefix}%5Bfield%5D=created_at&{prefix}%5Bdirection%5D=DESC"
    page = Reader(reader.session).goto(f"__SHOPPING__/rest/V1/orders?{query}")
    number = int(json.loads(page.body)["items"][0]["increment_id"])
    return f"__SHOPPING__/sales/order/view/order_id/{number}/"


def of_latest_review(locator, reader):
    kind, sku = re.fullmatch(
        r"func:shopping_get_sku_latest_review_(\w+)\('([\w-]+)'\)", locator
    ).groups()
    page = Reader(reader.session).goto(f"__SHOPPING__/rest/V1/products/{sku}/reviews")
    reviews = json.loads(page.body)
    if not reviews:
        return ""
    latest = reviews[-1]
    return latest["nickname"] if kind == "author" else str(latest["ratings"][0]["percent"])


def located(locator, page):
    selector, wanted = re.fullmatch(
        r"document\.querySelector\('(.*)'\)\.(outerText|value)", locator
    ).groups()
    found = page.xpath(xpath_of(selector))
    if not found:
        return ""
    element = found[0]
    if wanted == "outerText":
        return text_of(element)
    if element.tag == "select":
        return element.xpath("option[@selected]")[0].get("value")
    return element.text if element.tag == "textarea" else element.get("value")


def xpath_of(selector):
    path = ""
    for part in selector.replace(" > ", " >").split(" "):
        path += "/" if part.startswith(">") else "//"
        bare = part.lstrip(">")
        tag = TOKENS["tag"].match(bare)
        path += tag[1] if tag else "*"
        plain = TOKENS["name"].sub("", bare)
        for name in TOKENS["class"].findall(plain):
            path += f"[contains(concat(' ', @class, ' '), ' {name} ')]"
        for name in TOKENS["id"].findall(plain):
            path += f"[@id='{name}']"
        for name in TOKENS["name"].findall(bare):
            path += f"[@name='{name}']"
    return path
