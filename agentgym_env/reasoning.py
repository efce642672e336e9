"""Reasoning in a policy's text: what a model writes for itself before it acts.

Models mark it in different ways. It is no action, so it is removed before any action format or
world reads the text. Knows nothing about action formats and tools.
"""

from __future__ import annotations

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

_CALLS: Final = ("<tool_call>", "[TOOL_CALLS]", "{")
"""What a text begins with that begins with a call, whose arguments may contain a mark."""
_QUOTES: Final = "\"'`"

_HEADER: Final = re.compile(r"(?:<\|start\|>assistant)?(?:<\|channel\|>| to=)")
_ENDS: Final = re.compile(r"<\|(?:end|eom|eot|return|call)\|>")
_IS_REASONING: Final = re.compile(r"<\|channel\|>analysis| to=self\b")
_IS_CALL: Final = re.compile(r" ?\bto=(?!self\b|user\b)")
_IS_PREAMBLE: Final = re.compile(r"<\|channel\|>commentary")


def reply_of(text: str) -> str | None:
    """A policy's text without its reasoning; None if a turn ends inside its reasoning.

    Blocks are removed wherever they begin, except in a tool call and in quotation marks. A text
    that closes a block without opening one began inside it, as many chat templates open it.
    Of a turn in several messages (harmony), the final one is the reply, and calls keep their
    headers.
    """
    if _HEADER.match(text):
        return _reply_in_messages(text)
    for opening, closing in MARKS:
        if opening in text or closing in text:
            return _outside_of_blocks(text, opening, closing)
    return text


def opens_reasoning(text: str) -> str:
    """The end of a prompt from where it opens a block of reasoning; empty if it opens none."""
    for opening, closing in MARKS:
        begin = text.rfind(opening)
        if begin >= 0 and closing not in text[begin:]:
            return text[begin:]
    return ""


def _outside_of_blocks(text: str, opening: str, closing: str) -> str | None:
    begin, end = _unquoted(text, opening), _unquoted(text, closing)
    is_call = text.lstrip().startswith(_CALLS)
    if end >= 0 and not is_call and not 0 <= begin < end:
        text = text[end + len(closing) :]  # the prompt opened it
    if text.lstrip().startswith("{"):
        return text
    kept, at = [], 0
    for found in re.finditer(rf"<tool_call>|\[TOOL_CALLS\]|{re.escape(opening)}", text):
        begin = found.start()
        if begin < at or _is_quoted(text, begin, found.end()):
            continue
        kept.append(text[at:begin])
        at = begin
        if found[0] == "[TOOL_CALLS]":
            break
        if found[0] == opening:
            end = _unquoted(text, closing, found.end())
            if end < 0:
                reply = "".join(kept)
                return reply if reply.strip() else None
            at = end + len(closing)
        elif (end := text.find("</tool_call>", begin)) >= 0:
            kept.append(text[begin:end])
            at = end
    return "".join(kept) + text[at:]


def _unquoted(text: str, mark: str, at: int = 0) -> int:
    """The first place of a mark from `at` on that is not quoted; -1 if there is none."""
    place = text.find(mark, at)
    while place > 0 and _is_quoted(text, place, place + len(mark)):
        place = text.find(mark, place + 1)
    return place


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
