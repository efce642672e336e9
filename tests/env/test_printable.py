"""Foreign text in a terminal: shown, and never obeyed."""

from __future__ import annotations

import io

from rich.console import Console

from agentgym_env.printable import as_text, one_line, printable
from commands import agentgym

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202eesrever\u2066 \u200b\ufeff \ud800 \r\x08 "
    "[bold red]markup[/] :boom: [link=file:///etc/passwd]x[/link] <script>alert(1)</script>"
)


def test_what_a_terminal_would_obey_hide_or_reorder_is_written_out():
    shown = printable(HOSTILE)
    assert shown.startswith("\\x1b[2J\\x1b]0;owned\\x07 \\x9b31m \\u202eesrever\\u2066 \\u200b")
    assert "\\ufeff \\ud800 \\r\\x08 " in shown
    assert shown.endswith("<script>alert(1)</script>")
    assert all(c.isprintable() for c in shown)
    assert printable("é 雪 😀 a\u00a0b\n\tc \\n") == "é 雪 😀 a\u00a0b\n\tc \\n"
    assert one_line("a\n\tb\u00a0c\U000e0041") == "a\\n\\tb\\xa0c\\U000e0041"


def test_rich_finds_nothing_in_it():
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=400, highlight=False).print(as_text(HOSTILE))
    assert out.getvalue() == printable(HOSTILE) + "\n"


def test_of_a_long_text_the_middle_is_left_out():
    assert printable("a" * 1000, most=10) == "aaaaa ... 990 characters ... aaaaa"
    assert printable("a" * 10, most=10) == "a" * 10
    assert printable("\x1b" * 2**16) == "\\x1b" * 2**16


def test_playing_a_hostile_world_shows_it_as_text(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    ran = agentgym("play", "hostile:Rude", stdin="?\n\x1b[31m\ndie\n")
    assert ran.status == 0, ran.err
    ours = ran.out.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "")
    ours = ours.replace("\x1b[1;32m", "")
    assert "\x1b" not in ours and "\u202e" not in ours and "\x07" not in ours
    for seen in ("\\x1b[2J instruct", "\\x1b[2J first [bold]", "\\u202e act", "\\x1b[2J die"):
        assert seen in ours
    assert "characters ..." in ours  # the megabyte
