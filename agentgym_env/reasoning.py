"""Reasoning in a policy's text: what a model writes for itself before it acts.

Models mark it in different ways. It is no action, so it is removed before any action format or
world reads the text. Knows nothing about action formats and tools.
"""

from __future__ import annotations

import json
import re
from typing import Final

MARKS: Final = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
)
"""What opens and closes a block of reasoning: DeepSeek R1, Qwen3, GLM, Nemotron and many others;
Seed-OSS; Magistral; Command A; Gemma 4."""

_QUOTES: Final = "\"'`"
_HEADER: Final = re.compile(
    r"\s*(?:<\|start\|>assistant)?(?:<\|channel\|>| ?to=self\b| ?to=[\w.-]+\s*<\|)"
)
_ENDS: Final = re.compile(r"<\|(?:end|eom|eot|return|call)\|>")
_IS_REASONING: Final = re.compile(r"<\|channel\|>analysis| to=self\b")
_IS_CALL: Final = re.compile(r" ?\bto=(?!self\b|user\b)")
_IS_PREAMBLE: Final = re.compile(r"<\|channel\|>commentary")


def reply_of(text: str) -> str | None:
    """A policy's text without its reasoning; None if a turn ends inside its reasoning.

    Blocks are removed where they are. A mark that closes a block which the text has not opened ends
    reasoning too, since many chat templates open one in the prompt. Marks in tool calls and in
    quotation marks are text. Of a turn in several messages (harmony) the final one is the reply,
    and calls keep their headers.
    """
    if _HEADER.match(text):
        return _reply_in_messages(text)
    for opening, closing in MARKS:
        if opening in text or closing in text:
            reply = _outside_of_blocks(text, opening, closing)
            if reply != text:
                return reply
    return text


def reasoning_in(text: str) -> str:
    """All that comes before a text's reply; empty if there is none or some of it comes later."""
    reply = "" if _HEADER.match(text) else (reply_of(text) or "")
    reply, ended = reply.strip(), text.rstrip()
    return ended[: len(ended) - len(reply)] if reply and ended.endswith(reply) else ""


def opens_reasoning(text: str) -> str:
    """The end of a prompt from where it opens a block of reasoning; empty if it opens none."""
    for opening, closing in MARKS:
        begin = text.rfind(opening)
        if begin >= 0 and closing not in text[begin:]:
            return text[begin:]
    return ""


def _outside_of_blocks(text: str, opening: str, closing: str) -> str | None:
    at = max(0, _end_of_object(text, 0))
    kept, calls_end = text[:at], True
    for found in re.finditer(rf"<tool_call>|{re.escape(opening)}|{re.escape(closing)}", text):
        begin, end, mark = found.start(), found.end(), found[0]
        if begin < at or _is_quoted(text, begin, end):
            continue
        if mark == "<tool_call>":
            after = _end_of_object(text, end)
            if after < 0 and calls_end:
                after = text.find("</tool_call>", end)
                calls_end = after >= 0
            if after >= 0:
                kept, at = kept + text[at:after], after
            continue
        if mark == closing:  # the text before is reasoning that the prompt opened
            kept, at = "", end
        else:
            kept += text[at:begin]
            at = text.find(closing, end) + len(closing)
            if at < len(closing):
                return kept if kept.strip() else None
        after = -1 if kept.strip() else _end_of_object(text, at)
        if after >= 0:
            kept, at = kept + text[at:after], after
    return kept + text[at:]


def _end_of_object(text: str, at: int) -> int:
    """The end of the JSON object that begins at a place, after spaces; -1 if none does."""
    while text[at : at + 1].isspace():
        at += 1
    if text[at : at + 1] != "{":
        return -1
    try:
        return json.JSONDecoder().raw_decode(text, at)[1]
    except (ValueError, RecursionError):
        return -1


def _is_quoted(text: str, begin: int, end: int) -> bool:
    return begin > 0 and text[begin - 1] in _QUOTES and text[end : end + 1] == text[begin - 1]


def _reply_in_messages(text: str) -> str | None:
    """The reply of a turn in messages: gpt-oss and Muse write a header before each."""
    parts = (part.partition("<|message|>") for part in _ENDS.split(text))
    spoken = [(head, body) for head, mark, body in parts if mark and not _IS_REASONING.search(head)]
    calls = [f"{head}<|message|>{body}" for head, body in spoken if _IS_CALL.search(head)]
    if calls:
        return "".join(calls)
    final = [body for head, body in spoken if not _IS_PREAMBLE.search(head)]
    found = final or [body for _, body in spoken]
    return "".join(found) if found else None
