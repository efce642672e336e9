"""Parses the action in an agent's text, in BrowserGym's grammar or in WebArena's."""

from __future__ import annotations

from typing import Final

from agentgym_servers.web.actions.calls import SITES, Action, ActionProblem, CallGrammar
from agentgym_servers.web.actions.id_actions import parse_id_action, speaks_ids

MAX_ACTION_CHARS: Final = 20_000
"""Of a longer text, only the end is read."""

_FENCE: Final = "```"

_LANGUAGES: Final = ("python", "text", "plaintext", "bash", "action")

_PHRASE: Final = "next action i will perform is"

_NOTHING: Final = "ValueError: Received no action."

_NO_ACTION: Final = (
    f"{_NOTHING} Write one action, such as click('12'), "
    "fill('12', 'text'), select_option('12', 'option'), goto('url'), go_back() or "
    "send_msg_to_user('answer'); or, in ```, click [12], type [12] [text] [1] or stop [answer]."
)

_TWO_ACTIONS: Final = "ValueError: Received several actions. Write one action a turn."


def parse_action(text: str, grammar: CallGrammar = SITES) -> Action | ActionProblem:
    """The one action of a text: in its last fence, after WebArena's phrase, or in its last lines.

    Of a text with a call among prose, the last line with a call counts. The work is
    linear in the text's length.
    """
    text = text[-MAX_ACTION_CHARS:]
    fenced = _last_fence(text)
    if fenced is not None:
        found = _whole(fenced, grammar)
        if found is not None:
            return found
    after = text.lower().rfind(_PHRASE)
    if after >= 0:
        found = _whole(text[after + len(_PHRASE) :].strip(" \n:.`*\"'"), grammar)
        if found is not None:
            return found
    found = _whole(text.strip(), grammar)
    if found is not None:
        return found
    calls = grammar.calls(text)
    on_lines = calls[-1] if calls and "\n" in text[calls[-1].start : calls[-1].end] else None
    for line in reversed(text[on_lines.end if on_lines else 0 :].splitlines()):
        found = _whole(line.strip(" \t`*"), grammar)
        if found is not None:
            return found
    if on_lines:
        return grammar.parse(on_lines.source)
    return ActionProblem(_NO_ACTION if grammar is SITES else f"{_NOTHING} {grammar.how_to_call}")


def _whole(text: str, grammar: CallGrammar) -> Action | ActionProblem | None:
    """The action that a short text is or, among a few words, has; None without any."""
    if speaks_ids(text):
        found = parse_id_action(text)
        if isinstance(found, Action) and found.kind not in grammar.kinds:
            return ActionProblem(f"There is no action {found.kind!r} here. {grammar.how_to_call}")
        return found
    calls = grammar.calls(text)
    if not calls:
        return None
    if len(calls) == 1:
        return grammar.parse(calls[0].source)
    return ActionProblem(_TWO_ACTIONS) if calls[0].start == 0 else None


def _last_fence(text: str) -> str | None:
    end = text.rfind(_FENCE)
    start = text.rfind(_FENCE, 0, end) if end > 0 else -1
    if start < 0:
        return None
    inner = text[start + len(_FENCE) : end].strip()
    first, _, rest = inner.partition("\n")
    return rest.strip() if first.strip().lower() in _LANGUAGES and rest else inner
