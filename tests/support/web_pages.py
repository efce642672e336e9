"""Pages and a shop's REST answers for the evaluators' tests, out of a table."""

from __future__ import annotations

from agentgym_servers.web.evaluation.page_views import HtmlPage


class TablePages:
    """A browser whose pages are a table of address to HTML, and which is on the first of them."""

    def __init__(self, pages):
        self.pages = pages
        self.opened = []

    def current(self):
        return self._page(next(iter(self.pages)))

    def open(self, url):
        self.opened.append(url)
        return self._page(url)

    def _page(self, url):
        text = self.pages.get(url, "<p>404</p>")
        return HtmlPage(f"<html><body>{text}</body></html>", url)


class TableRest:
    """A REST interface whose answers are a table of path to JSON."""

    def __init__(self, answers):
        self.answers = answers
        self.asked = []

    def get(self, site, path, query):
        self.asked.append((site, path, query))
        return self.answers[path]


def task_json(**changes):
    """A task in WebArena's format; `eval` is merged, the rest is replaced."""
    task = {
        "sites": ["shopping"],
        "task_id": 7,
        "require_login": True,
        "storage_state": None,
        "start_url": "__SHOPPING__",
        "geolocation": None,
        "intent_template": "How many {{things}}?",
        "instantiation_dict": {"things": "mugs"},
        "intent": "How many mugs?",
        "require_reset": False,
        "eval": {
            "eval_types": ["string_match"],
            "reference_answers": {"exact_match": "5"},
            "reference_url": "",
            "program_html": [],
        },
        "intent_template_id": 3,
    }
    evaluation = {**task["eval"], **changes.pop("eval", {})}
    return {**task, **changes, "eval": evaluation}
