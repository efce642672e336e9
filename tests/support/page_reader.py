"""A small reader of the embedded sites' pages: does an expert's steps, and judges by a task."""

from __future__ import annotations

import re
from html import unescape
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urljoin, urlsplit

import lxml.html
import pytest

from agentgym_servers.web.sites.pages import freeze
from agentgym_servers.web.sites.site import HOSTS, Request, SiteSession, host_of
from agentgym_servers.web.tasks.scripts import Click, Fill, Goto, Select

GARBAGE = (
    "",
    "0",
    "-1",
    "9" * 30,
    "%00",
    "\0",
    "\ud800",
    "../..",
    "'; DROP TABLE user; --",
    "<script>alert(1)</script>",
    "x" * 10**6,
)
given_junk = pytest.mark.parametrize("junk", GARBAGE, ids=range(len(GARBAGE)))


class Sites:
    """Sites by WebArena's name, their blobs made once."""

    def __init__(self, sites, cookies, seed=0):
        self.by_host = {host_of(name): site for name, site in sites.items()}
        self.blobs = {site: freeze(site.make_database(seed)) for site in sites.values()}
        self.cookies = {host_of(name): dict(given) for name, given in cookies.items()}

    def open(self):
        return Reader(SiteSession(self.by_host, self.blobs), self.cookies)


class Reader:
    """One tab with cookies."""

    def __init__(self, session, cookies):
        self.session = session
        self.cookies = {host: dict(given) for host, given in cookies.items()}
        self.url, self.status, self.body = "", 0, ""

    def goto(self, url, method="GET", form=None):
        for _ in range(5):
            parts = urlsplit(absolute(url))
            jar = self.cookies.setdefault(parts.netloc, {})
            query = parse_qs(parts.query, keep_blank_values=True)
            request = Request(
                method, parts.netloc, unquote(parts.path) or "/", query, form or {}, jar
            )
            response = self.session.answer(request)
            for name, value in response.cookies.items():
                if value is None:
                    jar.pop(name, None)
                else:
                    jar[name] = value
            self.url, self.status, self.body = absolute(url), response.status, response.body
            if response.status not in (302, 303):
                self.page = lxml.html.fromstring(self.body or "<html></html>")
                return self
            url, method, form = urljoin(self.url, response.location), "GET", None
        raise AssertionError(f"too many redirects at {url}")

    def do(self, step):
        if isinstance(step, Goto):
            self.goto(step.url)
        elif isinstance(step, Click):
            self.click(step.role, step.name)
        elif isinstance(step, Fill):
            field = self.labelled(step.label)
            if field.tag == "textarea":
                field.text = step.text
            else:
                field.set("value", step.text)
        elif isinstance(step, Select):
            field = self.labelled(step.label)
            options = {option.text_content().strip(): option for option in field.iter("option")}
            for option in options.values():
                option.attrib.pop("selected", None)
            options[step.option].set("selected", "selected")
        assert self.status == 200 or "404" in str(self.status), (step, self.status, self.url)

    def click(self, role, name):
        path = {"link": "//a[@href]", "button": "//button"}[role]
        found = [e for e in self.page.xpath(path) if " ".join(e.text_content().split()) == name]
        assert found, f"no {role} {name!r} at {self.url}"
        if role == "link":
            self.goto(urljoin(self.url, found[0].get("href")))
        else:
            self.send(found[0])

    def labelled(self, label):
        found = [e for e in self.page.iter("label") if e.text_content().strip() == label]
        assert found, f"no field {label!r} at {self.url}"
        return self.page.get_element_by_id(found[0].get("for"))

    def send(self, button):
        form = next(button.iterancestors("form"))
        fields = [pair for pair in form.form_values() if pair[1] is not None]
        if button.get("name"):
            fields.append((button.get("name"), button.get("value")))
        action = urljoin(self.url, form.get("action"))
        if form.get("method") == "post":
            sent = {}
            for name, value in fields:
                sent.setdefault(name, []).append(value)
            self.goto(action, "POST", sent)
        else:
            self.goto(f"{action}?{urlencode(fields)}")

    def locate(self, locator):
        if not locator:
            return self.body
        inner = re.findall(r"querySelector\('([^']+)'\)", locator)
        if not inner:
            return None
        found = [self.page]
        for selector in inner:
            found = [e for node in found for e in node.xpath(xpath(selector))][:1]
        if not found:
            return ""
        if attribute := re.search(r"getAttribute\('(\w+)'\)", locator):
            return found[0].get(attribute[1], "")
        if locator.endswith(".value"):
            return found[0].get("value") or found[0].text_content()
        return found[0].text_content()


def solve(reader, task):
    """Do the expert's steps; gives the answer."""
    reader.goto(task.config["start_url"])
    for step in task.expert[:-1]:
        reader.do(step)
    return task.expert[-1].answer


def reward(reader, config, answer):
    """WebArena's product over the parts that these sites' tasks use."""
    evaluation = config["eval"]
    good = True
    if "string_match" in evaluation["eval_types"]:
        for kind, wanted in evaluation["reference_answers"].items():
            if kind == "exact_match":
                good &= clean(answer) == clean(wanted)
            elif len(wanted) == 1 and len(wanted[0]) == 1:
                good &= clean(wanted[0]) in clean(answer).split()
            else:
                good &= all(clean(part) in clean(answer) for part in wanted)
    if "url_match" in evaluation["eval_types"]:
        good &= url_matches(reader.url, absolute(evaluation["reference_url"]))
    last = reader.url
    return float(good and all(shown(reader, last, part) for part in evaluation["program_html"]))


def shown(reader, last, part):
    url = part["url"]
    if url.startswith("func:reddit_get_post_url"):
        pieces = urlsplit(last).path.split("/")
        url = f"{HOSTS['reddit']}/f/{pieces[2]}/{pieces[3]}/" if len(pieces) > 3 else last
    reader.goto(last if url == "last" else url)
    if part["locator"].startswith("func:gitlab_get_project_memeber_role"):
        name = re.search(r"'(.+)'", part["locator"])[1]
        labels = "//td[@data-label='Account']//span[@class='gl-avatar-labeled-sublabel']"
        names = [e.text_content() for e in reader.page.xpath(labels)]
        roles = reader.page.xpath("//td[contains(@class,'col-max-role')]//span")
        seen = roles[names.index(f"@{name}")].text_content() if f"@{name}" in names else ""
    else:
        seen = reader.locate(part["locator"])
    wanted = part["required_contents"]
    if "exact_match" in wanted:
        return clean(seen) == clean(wanted["exact_match"])
    # Escaped characters of a page's source are what they stand for, as the evaluator reads them.
    return all(clean(absolute(text)) in clean(unescape(seen)) for text in wanted["must_include"])


def url_matches(url, reference):
    here, there = urlsplit(url.rstrip("/")), urlsplit(reference.rstrip("/"))
    if there.netloc + there.path not in here.netloc + here.path:
        return False
    given = parse_qs(here.query)
    return all(value in given.get(key, []) for key, value in parse_qsl(there.query))


def clean(text):
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def absolute(text):
    for name, base in HOSTS.items():
        text = text.replace(f"__{name.upper()}__", base)
    return text


def xpath(selector):
    steps = []
    for part in re.sub(r"\s*>\s*", " >", selector).split():
        child, part = part.startswith(">"), part.lstrip(">")
        part = re.sub(r'^\[([\w-]+)="(\w+)"\]$', r"*[@\1='\2']", part)
        if "[" in part:
            steps.append(("/" if child else "//") + part)
            continue
        tag, kind, name = re.fullmatch(r"(\w*)(?:([.#])([\w-]+))?", part).groups()
        tests = {
            ".": f"[contains(concat(' ',normalize-space(@class),' '),' {name} ')]",
            "#": f"[@id='{name}']",
            None: "",
        }
        steps.append(("/" if child else "//") + (tag or "*") + tests[kind])
    return "." + "".join(steps)


def asked(reader, method, host, path, fields):
    """One raw request with the same fields in the query and the form, and a junk cookie."""
    jar = {**reader.cookies.get(host, {}), "junk": "\ud800"}
    answer = reader.session.answer(Request(method, host, path, fields, fields, jar))
    assert "<script" not in answer.body
    return answer


def proved(sites, task):
    """The expert earns the reward; no step at all and a wrong answer do not."""
    for answer in ("", "wrong"):
        idle = sites.open().goto(task.config["start_url"])
        assert reward(idle, task.config, answer) == 0.0, task.config["intent"]
    busy = sites.open()
    answer = solve(busy, task)
    if not answer.isdigit():
        shown = busy.page.text_content()
        assert all(part in shown for part in answer.split(", ")), task.config["intent"]
    assert reward(busy, task.config, answer) == 1.0, task.config["intent"]
    if "program_html" in task.config["eval"]["eval_types"]:
        # What was done there was done in that session alone.
        other = sites.open().goto(busy.url)
        assert reward(other, task.config, answer) == 0.0, task.config["intent"]


def splits_by_template(tasks):
    """Each template and the one split in which its tasks are; no intent is there twice."""
    splits = {}
    for task in tasks:
        assert splits.setdefault(task.config["intent_template_id"], task.split) == task.split
    assert len({task.config["intent"] for task in tasks}) == len(tasks)
    return splits


def crawl(reader, start, most):
    """Follow every internal link breadth first; gives the addresses seen."""
    pending, seen = [absolute(start)], set()
    while pending and len(seen) < most:
        url = pending.pop(0)
        if url in seen:
            continue
        seen.add(url)
        reader.goto(url)
        assert reader.status == 200, (reader.status, url)
        for href in reader.page.xpath("//a/@href"):
            target = urljoin(url, href).partition("#")[0]
            if urlsplit(target).netloc == urlsplit(url).netloc and target not in seen:
                pending.append(target)
    return seen
