"""Surrogates, control characters and huge numbers in an action are answered, never an exception."""

from __future__ import annotations

import random
import re

import pytest

from agentgym_env.registry import env_class
from agentgym_servers.web.actions.calls import ALL, Action
from agentgym_servers.web.actions.parse import parse_action
from agentgym_servers.worlds.webarena import WebArena
from browsing import needs_chromium

ODD = (
    # As escapes, which a call's literals decode: pairs, lone surrogates, other odd characters.
    r"\ud83d\ude00", r"\ud800", r"\udc00", r"\udfff\ud83d", r"\x00", r"\u2028", r"\ufeff",
    r"\ue000", r"\U0010ffff", r"\N{BULLET}", r"\x", r"\u12",
    # As themselves.
    "\ud83d\ude00", "\ud800", "\udc00", "\x00", "\u2028", "\u2029", "\ufeff", "\ue000",
    "\U0010ffff", "\uffff", "\u202e", "\x1b[2J", "\r\n", "\x85", "\x1c", "\u0130", "\uff0e",
    "\u2100", "\u0663", "\u00b2",
    # What numbers, addresses and markup make of it.
    "9" * 30, "9" * 5000, "1e400", "nan", "-1", "0x" + "f" * 4000, "%00", "%ed%a0%80", "%ff",
    "http://[", "//", ":80", "@", "#", "?", "&", "&#xD800;", "&#0;", "]", "'", "\\",
)  # fmt: skip
SITES = ("shop.test", "admin.test/admin", "forum.test", "code.test", "wiki.test", "map.test")
PATHS = ("/", "/search?q=", "/search?query=", "/p/", "/f/", "/?page=", "/wiki/", "?", "#", ":")


class Writer:
    """Writes actions of WebArena's two grammars with odd characters in every argument."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def odd(self) -> str:
        """One to three odd pieces."""
        return "".join(self._draw.choice(ODD) for _ in range(self._draw.randint(1, 3)))

    def text(self) -> str:
        """Odd pieces among ordinary letters, or alone."""
        odd = self.odd()
        return self._draw.choice((odd, f"red {odd}", f"{odd} lamp", f"a{odd}b"))

    def url(self) -> str:
        """An address with odd pieces, mostly of a site."""
        site, path = self._draw.choice(SITES), self._draw.choice(PATHS)
        return self._draw.choice(
            (f"http://{site}{path}{self.text()}", f"http://{self.text()}", self.text())
        )

    def action(self, tree: str) -> str:
        """An action, at something that the tree has; most often at one of its fields."""
        draw = self._draw
        fields = re.findall(r"\[(\d+)\] (?:textbox|searchbox|combobox)", tree)
        others = re.findall(r"\[(\d+)\] (?:link|button)", tree)
        field, other = (draw.choice(ids) if ids else self.odd() for ids in (fields, others))
        return draw.choice((
            f"goto({self.quoted(self.url())})", f"goto [{self.url()}]",
            f"fill('{field}', {self.quoted(self.text())})", f"type [{field}] [{self.text()}] [0]",
            f"type [{field}] [{self.text()}] [1]", "keyboard_press('Enter')",
            f"click('{other}')", f"click [{other}]", f"click('{other}', {self.quoted(self.odd())})",
            f"select_option('{field}', [{self.quoted(self.text())}, {self.quoted(self.odd())}])",
            f"select [{field}] [{self.text()}]", f"keyboard_press({self.quoted(self.odd())})",
            f"press [{self.odd()}]", f"hover({self.quoted(self.odd())})",
            f"scroll({self.odd()}, {self.odd()})", f"tab_focus({self.odd()})",
            f"tab_focus [{self.odd()}]", f"noop({self.odd()})", "new_tab()", "go_back()",
            f"jump({self.odd()})", self.text(),
        ))  # fmt: skip

    def quoted(self, text: str) -> str:
        """A text between quotes, its escapes as they are."""
        quote = self._draw.choice("'\"")
        return quote + text.replace(quote, "") + quote


def play_odd_actions(env: WebArena, steps: int) -> int:
    """Take that many odd actions; how many were understood."""
    draw = random.Random(f"odd/{steps}")
    writer = Writer(draw)
    tasks = env.tasks.split("train")
    understood = 0
    for turn in range(steps):
        if turn % 25 == 0:
            env.reset(seed=turn, options={"task": draw.choice(tasks)})
        action = writer.action(env._observation)
        try:
            observation, *_, info = env.step(action)
        except Exception as error:
            pytest.fail(f"{action[:300]!a} raised {type(error).__name__}: {error}")
        observation.encode("utf-8")
        understood += not info["invalid_action"]
        if turn % 25 == 24:
            text = writer.quoted(writer.text())
            env.step(draw.choice((f"send_msg_to_user({text})", f"stop [{writer.text()}]")))
    return understood


# As with an invalid escape, which is a warning at most where an agent plays.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")
@pytest.mark.parametrize("steps", [400, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", ["browsergym", "agentgym"])
def test_webarena_answers_whatever_characters_are_in_an_action(layout, steps):
    env = WebArena(layout=layout)
    try:
        # Were most of them refused at once, the pages would not have been tried.
        assert play_odd_actions(env, steps) > steps / 4
    finally:
        env.close()


@pytest.mark.slow
@needs_chromium
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")
def test_a_chromium_answers_whatever_characters_are_in_an_action():
    env = WebArena(backend="chromium")
    try:
        assert play_odd_actions(env, 50) > 10
    finally:
        env.close()


@pytest.mark.parametrize("backend", ["text", pytest.param("chromium", marks=needs_chromium)])
def test_a_surrogate_pair_is_its_character_in_the_field_and_a_lone_one_is_replaced(backend):
    env = WebArena(backend=backend)
    try:
        first, _ = env.reset(seed=0, options={"task": env.tasks.split("train")[0]})
        bid = re.search(r"\[(\d+)\] textbox 'Search'", first)[1]
        for action, value in (
            (rf'fill("{bid}", "a \ud83d\ude00")', "a 😀"),
            (f'fill("{bid}", "a \ud83d\ude00 b")', "a 😀 b"),
            (f"type [{bid}] [a \ud83d\ude00 c] [0]", "a 😀 c"),
            (rf'fill("{bid}", "\ud800 lamp \udc00\ud800")', "\ufffd lamp \ufffd\ufffd"),
            (f"type [{bid}] [lamp \ud800] [0]", "lamp \ufffd"),
        ):
            observation, *_, info = env.step(action)
            assert info["invalid_action"] is False
            field = re.search(rf"\[{bid}\] textbox 'Search'.*", observation)[0]
            assert f"StaticText {value!r}" in observation or f"value={value!r}" in field, field
        env.step(rf'fill("{bid}", "\ud83d\ude00")')
        found = env.step("keyboard_press('Enter')")[0]
        assert "Title: Search results for: '😀'" in found
        opened = env.step(r'goto("http://shop.test/search?q=\ud83d\ude00\ud800")')
        assert "?q=%F0%9F%98%80%EF%BF%BD\n" in opened[0]
        assert opened[-1]["invalid_action"] is False
    finally:
        env.close()


def test_every_text_of_a_call_is_cleaned():
    assert parse_action(r"send_msg_to_user('\ud83d\ude00')") == Action("send_msg_to_user", ("😀",))
    assert parse_action(r"select_option('\udc00', ['\ud83d\ude00', '\ud800'])") == Action(
        "select_option", ("\ufffd", ("😀", "\ufffd"))
    )
    assert parse_action(r"keyboard_type('\ud83d\ude00')", ALL) == Action("keyboard_type", ("😀",))


ELSEWHERE = {
    "agentgym/TextCraft-v0": ("{}", "get 1 {}", "get {} stick", "craft 1 {} using 1 {}"),
    "agentgym/BabyAI-v0": ("{}", "go to {}", "turn left {}"),
    "agentgym/SciWorld-v0": ("{}", "look at {}", "use {} on {}"),
    "agentgym/Search-v0": ("{}", "<search>{}</search>", "<answer>{}</answer>"),
    "agentgym/MiniWoB-v0": ("{}", "fill('{}', '{}')", "keyboard_type('{}')"),
}


@pytest.mark.parametrize(
    "env_id",
    [
        pytest.param(name, marks=[needs_chromium, pytest.mark.slow] if "MiniWoB" in name else [])
        for name in ELSEWHERE
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")
def test_other_worlds_answer_whatever_characters_are_in_an_action(env_id):
    env = env_class(env_id)()
    try:
        for seed, form in enumerate(ELSEWHERE[env_id]):
            env.reset(seed=seed)
            # A browser waits half a second for an element that is not there.
            for odd in ODD[:: 7 if "MiniWoB" in env_id else 1]:
                observation, _, over, *_ = env.step(form.replace("{}", odd))
                observation.encode("utf-8")
                if over:
                    env.reset(seed=seed)
    finally:
        env.close()
