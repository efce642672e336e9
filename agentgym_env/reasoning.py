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

_HEADER: Final = re.compile(
    r"(?:<\|start\|>assistant)?(?:<\|channel\|>| to=self\b| to=[\w.-]+\s*<\|)"
)
_ENDS: Final = re.compile(r"<\|(?:end|eom|eot|return|call)\|>")
_IS_REASONING: Final = re.compile(r"<\|channel\|>analysis| to=self\b")
_IS_CALL: Final = re.compile(r" ?\bto=(?!self\b|user\b)")
_IS_PREAMBLE: Final = re.compile(r"<\|channel\|>commentary")


def reply_of(text: str) -> str | None:
    """A policy's text without its reasoning; None if a turn ends inside its reasoning.

    The reasoning is what comes before the first mark that closes a block, and further blocks after
    it; many chat templates open the first one in the prompt. Marks in tool calls and in quotation
    marks are text. Of a turn in several messages (harmony) the final one is the reply, and calls
    keep their headers.
    """
    if _HEADER.match(text):
        return _reply_in_messages(text)
    for opening, closing in MARKS:
        reply = _after_blocks(text, opening, closing)
        if reply != text:
            return reply
    return text


def reasoning_in(text: str) -> str:
    """The blocks with which a text begins, up to its reply; empty if it has them elsewhere."""
    reply = "" if _HEADER.match(text) else reply_of(text)
    return text[: len(text) - len(reply)] if reply and text.endswith(reply) else ""


def opens_reasoning(text: str) -> str:
    """The end of a prompt from where it opens a block of reasoning; empty if it opens none."""
    for opening, closing in MARKS:
        begin = text.rfind(opening)
        if begin >= 0 and closing not in text[begin:]:
            return text[begin:]
    return ""


def _after_blocks(text: str, opening: str, closing: str) -> str | None:
    end = _unquoted(text, closing)
    if text.lstrip().startswith(_CALLS):
        return text
    if end < 0:
        return None if text.lstrip().startswith(opening) else text
    rest = text[end + len(closing) :]
    return rest if rest.lstrip().startswith("{") else _without_blocks(rest, opening, closing)


def _without_blocks(text: str, opening: str, closing: str) -> str | None:
    """The text outside of blocks; None if it is empty and the last block is not closed."""
    kept, at = "", 0
    for found in re.finditer(rf"<tool_call>|\[TOOL_CALLS\]|{re.escape(opening)}", text):
        begin, is_block = found.start(), found[0] == opening
        if begin < at or (is_block and _is_quoted(text, begin, found.end())):
            continue
        if found[0] == "[TOOL_CALLS]":
            break
        end = _unquoted(text, closing, begin) if is_block else text.find("</tool_call>", begin)
        if end >= 0 and not is_block:
            kept, at = kept + text[at:end], end
        elif is_block:
            kept += text[at:begin]
            if end < 0:
                return kept if kept.strip() else None
            at = end + len(closing)
    return kept + text[at:]


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
