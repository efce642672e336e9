"""Actions in the shape of each world's grammar, with odd arguments: none raises or ends a session.

In full, 3,000 actions per world through a server. A run of this file alone repeats them.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agentgym_env.client.sync import EnvClient
from agentgym_env.spaces import clean_text
from agentgym_servers.web.actions.calls import (
    ALL,
    SITES,
    WIDGETS,
    Action,
    ActionProblem,
    write_call,
)
from agentgym_servers.web.actions.parse import parse_action
from browsing import needs_chromium

pytestmark = pytest.mark.slow
STEPS = 3000
STEPS_IN_A_BROWSER = 300
PER_EPISODE = 40

ODD = (
    "", " ", "\n", "\t\r\n", "\x00", "\x1b[2J", "\ufeff", "\u2028", "\u202e", "\ud800",
    "\U0010ffff", "é", "ß", "İ", "٣", "²", "½", "Ⅷ", "😀", "'", '"', "\\", "`", "```", "''", '"""',
    "\\'", "\\u12", "0", "-1", "1.5", "1e400", "nan", "inf", "9" * 30, "9" * 5000, "1_000", "+7",
    "0x" + "f" * 4000, "[", "]", "[]", "[[[]]]", "[" * 3000, "]" * 3000, "(" * 3000, ")" * 9, "{}",
    "{" * 200, "<", ">", "</answer>", "<answer>", "<search>", "None", "True", "...", "*", "**{}",
    "lambda: 0", "%s%n", "{0.__class__}", "http://", "http://[", "//", "javascript:1", ",", ";",
    "file:///etc/passwd", "and", "using", "to", "of", "a" * 9000, "../..", "&#0;", "$(id)", "-- ",
    "\\N{BULLET}",
)  # fmt: skip
WEB_WORDS = (
    "Enter",
    "Control+a",
    "left",
    "Shift",
    "http://shop.test/",
    "http://forum.test/f",
    "12",
)
WELL_FORMED = (
    "click('~')", "click [~]", "fill('~', '#')", "hover('~')", "select_option('~', '#')",
    "select_option('~', ['#', '#'])", "keyboard_press('#')", "scroll(0, #)", "noop(#)", "press [#]",
    "type [~] [#] [0]", "type [~] [#]", "select [~] [#]", "scroll [#]", "hover [~]",
)  # fmt: skip
ON_SITES = (
    *WELL_FORMED, "goto('http://shop.test/#')", "goto('http://forum.test/f/#')", "goto('#')",
    "goto [http://#]", "tab_focus(#)", "tab_focus [#]", "new_tab()", "go_back()", "go_forward()",
    "tab_close()", "send_msg_to_user('#')", "stop [#]", "report_infeasible('#')",
)  # fmt: skip
ON_WIDGETS = (
    *WELL_FORMED, "dblclick('~')", "click('~', '#', ['#'])", "press('~', '#')", "focus('~')",
    "clear('~')", "drag_and_drop('~', '~')", "scroll_at(#, 9, 0, #)", "mouse_move(#, 9)",
    "mouse_down(#, 9)", "mouse_up(9, #)", "mouse_click(#, #, '#')", "mouse_dblclick(9, 99)",
    "mouse_drag_and_drop(9, 9, #, #)", "keyboard_down('#')", "keyboard_up('#')",
    "keyboard_type('#')", "keyboard_insert_text('#')",
)  # fmt: skip
OTHER_CALLS = ("type", "select", "stop", "jump", "upload_file", "click ")
WORLDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "textcraft": (
        ("@", "@", "@#", "get # #", "craft # # using # #", "craft # # using # #, # #",
         "craft # using #", "inventory", "get #", "craft #", "# # #"),
        ("1", "2", "stick", "oak planks", "oak log", "planks"),
    ),
    "babyai": (
        ("turn left", "turn right", "move forward", "go to #", "pick up #", "go through #",
         "toggle and go through #", "toggle", "drop", "check available actions", "# #"),
        ("red ball 1", "blue key 1", "green box 1", "red door 1", "1"),
    ),
    "sciworld": (
        ("look around", "look at #", "open #", "go to #", "pick up #", "move # to #",
         "pour # into #", "use # on #", "focus on #", "connect # to #", "mix #", "wait", "wait1",
         "#", "task", "eat #"),
        ("door to kitchen", "thermometer", "inventory", "sink", "0", "1", "metal pot"),
    ),
    "search": (
        ("<search>#</search>", "<answer>#</answer>", "<think>#</think><search>#</search>", "#",
         "<search>#", "<information>#</information>", "<answer>#</answer><answer>#</answer>"),
        ("who", "capital", "town", "river"),
    ),
}  # fmt: skip
"""World -> its actions, and words that it knows; # is an argument and @ an available action."""

odd = st.one_of(st.sampled_from(ODD), st.text(max_size=12), st.integers().map(str))
seen = st.integers(min_value=0, max_value=400)
"""The place of a word in the last observation."""


def arguments(words: tuple[str, ...]) -> st.SearchStrategy[list[int | str]]:
    """A word that the world knows or that it showed, something odd, or these together."""
    known = st.lists(st.sampled_from(words), min_size=1, max_size=1)
    return st.one_of(
        known, known, known, st.lists(st.one_of(known_or_seen(words), odd), max_size=3)
    )


def known_or_seen(words: tuple[str, ...]) -> st.SearchStrategy[int | str]:
    """A word that the world knows, or the place of one that it showed."""
    return st.one_of(st.sampled_from(words), seen)


@st.composite
def written(draw: st.DrawFn, forms: tuple[str, ...], words: tuple[str, ...]) -> list[int | str]:
    """An action in parts: texts, and places of words in the last observation."""
    parts: list[int | str] = []
    for number, text in enumerate(draw(st.sampled_from(forms)).split("#")):
        parts += [*(draw(arguments(words)) if number else ()), text]
    around = draw(st.sampled_from((*[""] * 9, " ", "\n", "```\n", "I think: ")))
    return [around, *parts, draw(st.sampled_from((*[""] * 9, " ", "\n", "!", "\n```")))]


def on_a_page(calls: tuple[str, ...], kinds: Iterable[str]) -> st.SearchStrategy:
    """Calls as they should be, and others with up to four arguments, quoted in all ways."""
    given = (
        "()", "('#')", '("#")', "(#)", "('#', '#')", "('#', #)", "(#, #)", "('#', ['#', '#'])",
        "(#, #, #, #)", "(bid='#')", "('#', '#', '#')", " [#]", " [#] [#]", " [#] [#] [1]",
    )  # fmt: skip
    forms = tuple(f"{kind}{one}" for kind in [*sorted(kinds), *OTHER_CALLS] for one in given)
    good = written(calls, WEB_WORDS)
    return st.one_of(good, good, written(forms, WEB_WORDS))


def rendered(parts: list[int | str], observation: str, listed: Sequence[str] = ()) -> str:
    """The action as text, with words and elements' ids of the last observation."""
    number = sum(map(ord, observation))
    words = re.findall(r"\w+", observation) or [""]
    ids = re.findall(r"\[(\d+)\] (?:link|button|textbox|combobox|checkbox)", observation) or ["1"]
    written = "".join(p if isinstance(p, str) else words[p % len(words)] for p in parts)
    if listed:
        written = written.replace("@", listed[number % len(listed)])
    return re.sub("~", lambda found: ids[(number + found.start()) % len(ids)], written)


def examples(count: int) -> Callable:
    """So many; a failure names its action and is not made smaller."""
    return settings(
        max_examples=count, derandomize=True, database=None, deadline=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip


@contextmanager
def served(folder: Path, *words: str) -> Iterator[tuple[EnvClient, Path]]:
    """A server of a world, and its log."""
    log = folder / "log.txt"
    command = [sys.executable, "-m", "agentgym_servers", *words, "--port", "0"]
    with log.open("w") as errors, subprocess.Popen(command, stderr=errors) as process:
        try:
            until = time.monotonic() + 120
            while not (found := re.search(r"serving \S+ on (http://\S+)", log.read_text())):
                assert process.poll() is None and time.monotonic() < until, log.read_text()
                time.sleep(0.1)
            with EnvClient(found[1], timeout_s=120) as client:
                yield client, log
        finally:
            process.terminate()
    assert process.returncode == 0, log.read_text()[-2000:]


class Fuzz:
    """One session that is given odd actions, and what came of them."""

    def __init__(self, client: EnvClient) -> None:
        self.session = client.open()
        self.tasks = client.task_set().split("train")
        self.actions = self.understood = self.episodes = 0
        self.slowest = 0.0
        self.start()

    def start(self) -> None:
        """The next episode."""
        task = self.tasks[self.episodes * 37 % len(self.tasks)]
        self.observation = self.session.reset(seed=self.episodes, task=task).observation
        self.episodes += 1
        self.turns = 0

    def step(self, parts: list[int | str]) -> None:
        """Take an action; the reply is that of any turn."""
        listed = self.session.available_actions() if "@" in parts else None
        action = rendered(parts, self.observation, listed or ())
        began = time.monotonic()
        try:
            reply = self.session.step(action)
        except Exception as error:
            pytest.fail(f"{action[:500]!a} raised {type(error).__name__}: {error}")
        took = time.monotonic() - began
        self.slowest = max(self.slowest, took)
        assert isinstance(reply.observation, str) and math.isfinite(reply.reward), ascii(action)
        self.actions, self.turns = self.actions + 1, self.turns + 1
        self.understood += not reply.info.get("invalid_action")
        self.observation = reply.observation
        if reply.terminated or reply.truncated or self.turns == PER_EPISODE:
            self.start()

    def check(self, world: str, log: Path) -> None:
        """The session is as usable as a new one, and the server has logged no failure."""
        # Not every task of a world has a way that its oracle knows.
        for _ in range(20):
            self.start()
            action = self.session.expert_action()
            if action is not None:
                break
        assert action is not None
        assert not self.session.step(action).info.get("invalid_action")
        assert "Traceback" not in log.read_text(), log.read_text()[-3000:]
        sys.stdout.write(
            f"{world}: {self.actions:,} actions, {self.understood:,} understood, "
            f"{self.episodes:,} episodes, slowest {self.slowest:.2f} s, no exception\n"
        )


def fuzz(folder: Path, words: list[str], strategy: st.SearchStrategy, count: int) -> None:
    with served(folder, *words) as (client, log):
        played = Fuzz(client)

        @examples(count)
        @given(strategy)
        def run(parts: list[int | str]) -> None:
            played.step(parts)

        run()
        # Were most of them refused at once, the world itself would not have been tried.
        assert played.actions >= 0.9 * count and played.understood > count / 50
        played.check(" ".join(words), log)


@pytest.mark.parametrize("world", WORLDS)
def test_a_world_answers_any_action_of_its_grammar(world, tmp_path):
    fuzz(tmp_path, [world], written(*WORLDS[world]), STEPS)


@pytest.mark.parametrize("layout", ["browsergym", "agentgym"])
def test_the_sites_answer_any_action_of_their_grammars(layout, tmp_path):
    kwargs = f'{{"layout": "{layout}"}}'
    fuzz(tmp_path, ["webarena", "--env-kwargs", kwargs], on_a_page(ON_SITES, SITES.kinds), STEPS)


@needs_chromium
def test_a_chromium_on_sites_answers_any_action_of_its_grammars(tmp_path):
    kwargs = '{"backend": "chromium"}'
    words = ["webarena", "--env-kwargs", kwargs]
    fuzz(tmp_path, words, on_a_page(ON_SITES, SITES.kinds), STEPS_IN_A_BROWSER)


@needs_chromium
def test_a_chromium_with_widgets_answers_any_action_of_its_grammar(tmp_path):
    fuzz(tmp_path, ["miniwob"], on_a_page(ON_WIDGETS, WIDGETS.kinds), STEPS_IN_A_BROWSER)


@pytest.mark.parametrize(
    ("name", "grammar"), [("sites", SITES), ("widgets", WIDGETS), ("all", ALL)]
)
def test_the_web_worlds_parse_any_text(name, grammar):
    understood = []

    @examples(STEPS)
    @given(on_a_page((*ON_SITES, *ON_WIDGETS), ALL.kinds))
    def run(parts: list[int | str]) -> None:
        text = clean_text(rendered(parts, "[12] button 'Search'"))  # as every world is given it
        found = parse_action(text, grammar)
        assert isinstance(found, Action | ActionProblem)
        understood.append(isinstance(found, Action))
        if isinstance(found, Action):
            # What it reads, it writes as it reads it.
            again = parse_action(write_call(found), grammar)
            assert again == found or found.kind == "fill", (text, found, again)

    run()
    sys.stdout.write(
        f"grammar of {name}: {len(understood):,} texts, {sum(understood):,} understood, "
        "no exception\n"
    )
    assert sum(understood) > STEPS / 50
