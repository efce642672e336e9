"""Search: answer questions by searching a corpus, as in Search-R1 (arXiv:2503.09516)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from agentgym_env.errors import BadRequest
from agentgym_env.reasoning import reply_of
from agentgym_env.text_env import TextEnv
from agentgym_env.tools import Verb
from agentgym_servers import answer_forms
from agentgym_servers.host.logs import event
from agentgym_servers.worlds.search.answers import exact_match, f1, sub_exact_match
from agentgym_servers.worlds.search.corpora import Solving, solve
from agentgym_servers.worlds.search.retrieval.passages import Hit, RetrieverFailed
from agentgym_servers.worlds.search.setup import search_setup

MAX_PASSAGES = 100

_MAX_PASSAGE_CHARS = 8_000  # 100 such passages fit an observation

logger = logging.getLogger(__name__)

_HOW = (
    "Answer the question. Find what you need to know in a collection of texts: each turn, search "
    "or give the answer. You may think first, between <think> and </think>.\n"
    "<search>what to look for</search> - the passages that fit best come back between "
    "<information> and </information>; search as often as needed\n"
    "<answer>the answer</answer> - a name, a number or a few words, with no explanation\n"
    "The first of these in a turn counts. "
)

_NO_ACTION = (
    "This turn has neither a search nor an answer. Write <search>what to look for</search> or "
    "<answer>the answer</answer>."
)

_EMPTY_QUERY = "The query is empty. Write what to look for between <search> and </search>."

_NO_REPLY = "The search engine did not answer. Try again."

_NOTHING = "<information>Nothing was found. Try other words.</information>"

_LEGACY_RIGHT = "Congratulations! You have answered the question correctly."

_LEGACY_WRONG = "Sorry, your answer is incorrect. Please try again."

_LEGACY_NO_ACTION = (
    "Your previous action is invalid. If you want to search, you should put the query between "
    "<search> and </search>. If you want to give the final answer, you should put the answer "
    "between <answer> and </answer>. Please try again."
)


class ParsedAction(NamedTuple):
    """A turn that was understood."""

    kind: str
    """`search` or `answer`."""
    text: str


def parse_action(action: str) -> ParsedAction | None:
    r"""Parse the first search or answer of a turn; the text around it is ignored.

    It is the first match of `<(search|answer)>(.*?)</\1>`, in time that grows with the length.
    """
    kinds = ("search", "answer")
    found = [(pair[0], kind, pair[1]) for kind in kinds if (pair := _pair(action, kind, 0))]
    if not found:
        return None
    _, kind, text = min(found)
    return ParsedAction(kind, text.strip())


def last_answer(action: str) -> str:
    """The text of the last `<answer>...</answer>`, which is what the original compares."""
    text, place = "", 0
    while pair := _pair(action, "answer", place):
        _, text, place = pair
    return text.strip()


def format_passages(hits: Sequence[Hit]) -> str:
    """Format passages as Search-R1 does: `Doc 1(Title: "Title") Text`, one a line."""
    lines = [f"Doc {number}{_document(hit)}" for number, hit in enumerate(hits, 1)]
    return f"<information>{''.join(lines).strip()}</information>"


def search_turn(query: str) -> str:
    """The turn that searches for a query."""
    return f"<search>{query}</search>"


def answer_turn(text: str) -> str:
    """The turn that gives an answer."""
    return f"<answer>{text}</answer>"


class Search(TextEnv):
    """Answer a question about a corpus, by searching it as often as needed.

    ## Description
    Multi-turn retrieval as in Search-R1 (arXiv:2503.09516): each turn searches a corpus of passages
    or gives the answer.

    ## Observation
    The question; after a search, the passages that it finds, between `<information>` and
    `</information>`.

    ## Actions
    | action | effect |
    |---|---|
    | `<search>QUERY</search>` | find the `topk` passages that fit the query best |
    | `<answer>TEXT</answer>` | answer the question |

    The first of the two in a turn counts; text around it is ignored, and so is what stands between
    `<think>` and `</think>`. A turn with neither changes nothing.

    ## Rewards
    1 for an answer that equals a golden answer after SQuAD's normalisation (lower case, no
    punctuation, no articles, single spaces), else 0. Of the corpora below, dates and numbers may
    have other common forms, such as `June 21st, 1819`. After an answer the info has its `f1` and
    `sub_em`; it always has `retrieval_errors`.

    ## Termination
    The episode terminates with the first answer; with `legacy=True`, with the first right one. It
    is truncated after 10 turns.

    ## Tasks
    The questions of `corpus`, or those of `questions`, with their splits. `searchqa_N` is
    AgentGym's number N.

    | corpus | `train` | `test` | passages | category |
    |---|---|---|---|---|
    | `synthetic:0` | 5,400 | 600 | 10,000 | 13: kind and hops (1 to 4) |
    | `timezones` | 800 | 150 | 665 | 5: kind and hops (1 to 4) |

    ## Arguments
    - `corpus` (default `"synthetic:0"`): a corpus above, or the path of a file that `python -m
      tools.generated_world` wrote
    - `questions` (default `None`): questions instead of the corpus' own: a .jsonl or .parquet
      file, a folder of them, `hf:NAME[:CONFIG][:SPLIT]`, or `searchr1:FOLDER` for Search-R1's
      seven datasets; needs `retriever`
    - `retriever` (default `None`): the folder of an index or an http address; by default BM25
      over the corpus, in this process
    - `topk` (default `3`): passages of a search, 1 to 100
    - `legacy` (default `False`): a wrong answer may be tried again, as in AgentGym, and the
      replies to a turn are its own

    ## Data
    `synthetic:0` is invented and made by this project (Apache-2.0). `timezones` is made from tables
    of tzdata 2025b, which are in the public domain.

    ## Registered id
    `agentgym/Search-v0`
    """

    instruction = _HOW + "There is one answer: it ends the episode, right or wrong."
    verbs = (
        Verb("<search>{query}</search>", "Search the collection of texts.", "search"),
        Verb(
            "<answer>{text}</answer>", "Give the answer: a name, a number or a few words.", "answer"
        ),
    )

    def __init__(
        self,
        render_mode: str | None = None,
        corpus: str = "synthetic:0",
        retriever: str | None = None,
        questions: str | None = None,
        topk: int = 3,
        legacy: bool = False,
    ) -> None:
        if not isinstance(topk, int) or not 1 <= topk <= MAX_PASSAGES:
            raise BadRequest(f"topk is a whole number from 1 to {MAX_PASSAGES}, got {topk!r}")
        self._named = corpus, retriever, questions
        self._setup = search_setup(*self._named)
        self._finder = corpus if retriever is None else retriever
        self.tasks = self._setup.questions.tasks  # type: ignore[misc]
        if self.default_split not in self.tasks.splits:
            self.default_split = next(iter(self.tasks.splits))  # type: ignore[misc]
        if legacy:
            self.instruction = _HOW + "After a wrong answer you may go on."  # type: ignore[misc]
        super().__init__(render_mode)
        self._topk, self._legacy = topk, legacy

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has; questions and index are shared, or made anew in another process."""
        return {name: v for name, v in super().__getstate__().items() if name != "_setup"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._setup = search_setup(*self._named)

    def _reset(self, task: str) -> str:
        self._item = self._setup.questions.items[task]
        self._source = self._setup.questions.sources.get(task)
        self._query = ""
        self._hits: Sequence[Hit] | None = None
        self._failures, self._solved, self._invalid = 0, False, False
        self._quality: dict[str, str | int | float] = {}
        if self._legacy:
            return f"{self.instruction}\n\n Question: {self._item.question}"
        return f"Question: {self._item.question}"

    def _step(self, action: str) -> tuple[str, float, bool]:
        reply = reply_of(action) or ""
        parsed = parse_action(reply)
        self._invalid = parsed is None or (parsed.kind == "search" and not parsed.text)
        if parsed is None:
            return _LEGACY_NO_ACTION if self._legacy else _NO_ACTION, 0.0, False
        if parsed.kind == "search":
            return self._search(parsed.text), 0.0, False
        return self._answer(last_answer(reply) if self._legacy else parsed.text)

    def _search(self, query: str) -> str:
        self._query, self._hits = query, None
        if not query and not self._legacy:
            return _EMPTY_QUERY
        try:
            (self._hits,) = self._setup.retriever.search([query], self._topk)
        except RetrieverFailed as error:
            self._failures += 1
            self.env_errors.append("retrieval_failed")
            cause = type(error.__cause__ or error).__name__
            event(logger, logging.WARNING, "retrieval_failed", retriever=self._finder, cause=cause)
            # A server's answer may quote the query, which does not belong in a log.
            logger.debug("%s", error)
            return _NO_REPLY
        found = format_passages(self._hits) if self._hits or self._legacy else _NOTHING
        return found if self._legacy else f"\n\n{found}\n\n"

    def _answer(self, answer: str) -> tuple[str, float, bool]:
        golden = self._item.answers
        self._solved = exact_match(answer, golden) or (
            # Published questions are judged by Search-R1's rule alone.
            self._source is not None and any(answer_forms.same(text, answer) for text in golden)
        )
        self._quality = {
            "f1": f1(answer, golden),
            "sub_em": int(sub_exact_match(answer, golden)),
        }
        if self._solved:
            return _LEGACY_RIGHT if self._legacy else "The answer is right.", 1.0, True
        if self._legacy:
            return _LEGACY_WRONG, 0.0, False
        return "The answer is wrong.", 0.0, True

    def success(self) -> bool:
        """Whether a right answer was given."""
        return self._solved

    def invalid_action(self) -> bool:
        """Whether the last turn had neither a query nor an answer."""
        return self._invalid

    def details(self) -> dict[str, str | int | float]:
        """How often the retriever failed; and how good the last answer is, once there is one."""
        return {"retrieval_errors": self._failures, **self._quality}

    def has_expert(self) -> bool:
        """Whether the questions are those of a world that comes with the package."""
        return bool(self._setup.questions.sources)

    def expert(self) -> Iterator[str]:
        """Search and read as the world's expert does, whatever others do in between."""
        if self._source is None:
            raise NotImplementedError("questions of files have no expert")
        return self._solve(solve(self._source))

    def _solve(self, solving: Solving) -> Iterator[str]:
        try:
            query = next(solving)
            while True:
                # Repeat it if the search failed, or if another search came in between.
                while self._query != query.strip() or self._hits is None:
                    yield search_turn(query)
                query = solving.send([hit.passage for hit in self._hits])
        except StopIteration as end:
            while end.value:
                yield answer_turn(end.value)


def _document(hit: Hit) -> str:
    title, _, text = hit.passage.contents[:_MAX_PASSAGE_CHARS].partition("\n")
    return f"(Title: {title}) {text}\n"


def _pair(text: str, kind: str, place: int) -> tuple[int, str, int] | None:
    """The first pair of tags from `place` on: its start, its content, its end."""
    opening, closing = f"<{kind}>", f"</{kind}>"
    start = text.find(opening, place)
    end = text.find(closing, start + len(opening)) if start >= 0 else -1
    return (start, text[start + len(opening) : end], end + len(closing)) if end >= 0 else None
