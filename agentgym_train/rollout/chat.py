"""Chat: append-only conversations of token ids that keep sampled tokens unchanged.

The first prompt is the chat template's rendering of the instruction and the first observation.
After that, each turn's sampled ids are kept, and each observation is appended as the template's
delta. Nothing is tokenized twice. Knows nothing about models or environments.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Final

from agentgym_env.errors import ConfigError
from agentgym_train.config.base import PolicyConfig

_INSTRUCTION = "XINSTRUCTIONX"
_FIRST = "XFIRSTX"
_REPLY = "XREPLYX"
_SECOND = "XSECONDX"
_REASONING = "XREASONINGX"


TEMPLATE_S: Final = 10.0
"""Seconds that a chat template may take to render a conversation."""


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, str]], **values: Any) -> str:
    """The text of a conversation by a tokenizer's chat template.

    Raises `TimeoutError` if the template takes too long, which is noticed in the main thread only,
    and not on Windows. A template may raise anything.
    """
    if not hasattr(signal, "setitimer") or current_thread() is not main_thread():
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **values))

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"it did not end within {TEMPLATE_S:g} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, TEMPLATE_S)
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **values))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class TemplateRewritesHistory(ConfigError):
    """The chat template changes earlier turns, so sampled tokens cannot be kept unchanged."""


@dataclass(frozen=True, slots=True)
class _Frame:
    """The template's text before and after a message."""

    before: str
    after: str

    def fill(self, text: str) -> str:
        return self.before + text + self.after


class Chat:
    """Turns observations into token ids with a tokenizer's chat template.

    Raises `TemplateRewritesHistory` if the template drops or changes earlier turns, as templates
    of reasoning models do with `<think>` blocks. With `keep_reasoning=True` such a template is
    used append-only: in training and evaluation the policy sees its earlier reasoning, which the
    template alone would not render.
    """

    def __init__(
        self,
        tokenizer: Any,
        instruction: str = "",
        *,
        keep_reasoning: bool = False,
        template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"the tokenizer {getattr(tokenizer, 'name_or_path', '')!r} has no chat "
                "template; add one with `agentgym models NAME --save FOLDER "
                "--chat-template chatml`"
            )
        self._tokenizer = tokenizer
        self._kwargs = template_kwargs or {}
        self._instruction = instruction
        self._check_history(keep_reasoning)
        self._trims = f" {_FIRST}" not in self._render([_user(f" {_FIRST} ")])
        self._first = self._first_frame()
        self._next = self._next_frame()
        self._control = _control_tokens(tokenizer)
        self.end_id = self._end_of_turn()
        stops = {self.end_id, tokenizer.eos_token_id} - {None}
        self.stop_ids: tuple[int, ...] = tuple(sorted(stops))
        """Token ids that end a turn."""

    def start(self, observation: str) -> list[int]:
        """The ids of the first prompt, up to the start of the policy's first turn."""
        if self._names_control(observation):
            return self._encode(self._first, observation)
        # Render both: instruction and observation may share a message, which is trimmed as one.
        text = self._render(self._opening(observation))
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def delta(self, response_ids: Sequence[int], observation: str) -> list[int]:
        """The ids between two sampled turns: the observation, after an end token if missing."""
        ids = self._encode(self._next, observation)
        ended = bool(response_ids) and response_ids[-1] == self.end_id
        return ids[1:] if ended else ids

    def text_of(self, response_ids: Sequence[int]) -> str:
        """The policy's text: the sampled ids, decoded without the token that ended the turn."""
        ids = list(response_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def response_ids(self, text: str) -> list[int]:
        """The ids of a demonstrated turn, including its end token."""
        return [*self._plain_ids(text), self.end_id]

    def _render(self, messages: list[dict[str, str]], generate: bool = True) -> str:
        try:
            return rendered(
                self._tokenizer, messages, add_generation_prompt=generate, **self._kwargs
            )
        except Exception as error:  # a template runs code that may raise anything
            given = f" with chat_template_kwargs {self._kwargs}" if self._kwargs else ""
            raise ConfigError(
                f"the chat template raised {type(error).__name__}{given}: {error}. Change the "
                "arguments, or use another template"
            ) from error

    def _opening(self, observation: str) -> list[dict[str, str]]:
        """The first messages; without a system role the instruction is in the user message."""
        if not self._instruction:
            return [_user(observation)]
        try:
            messages = [{"role": "system", "content": self._instruction}, _user(observation)]
            if self._instruction.strip() in self._render(messages):
                return messages
        except ConfigError as error:
            # Templates raise various Jinja exceptions for unsupported roles.
            said = str(error.__cause__).lower()
            if "role" not in said and "system" not in said:
                raise
        return [_user(f"{self._instruction}\n\n{observation}")]

    def _first_frame(self) -> _Frame:
        before, after = _cut_once(self._render(self._opening(_FIRST)), _FIRST)
        return _Frame(before, after)

    def _next_frame(self) -> _Frame:
        """The text after a reply: end of turn, next observation, generation prompt."""
        opening = [*self._opening(_FIRST), _assistant(_REPLY)]
        _, rest = _cut_once(self._render([*opening, _user(_SECOND)]), _REPLY)
        before, after = _cut_once(rest, _SECOND)
        return _Frame(before, after)

    def _end_of_turn(self) -> int:
        ids = self._tokenizer.encode(self._next.before, add_special_tokens=False)
        if not ids or ids[0] not in self._control:
            raise ConfigError(
                f"the chat template ends a turn with {self._next.before[:40]!r}, which is not a "
                "special token, so a policy could not end its turn. Use a template with an "
                "end-of-turn token"
            )
        return int(ids[0])

    def _check_history(self, keep_reasoning: bool) -> None:
        start = self._render(self._opening(_FIRST))
        reply = [*self._opening(_FIRST), _assistant(_REPLY), _user(_SECOND)]
        second = self._render(reply)
        third = self._render([*reply, _assistant(_REPLY), _user(_SECOND)])
        delta = second[len(start) :]
        if not second.startswith(start + _REPLY) or third != second + delta:
            problem = "changes earlier turns"
        else:
            thought = f"<think>\n{_REASONING}\n</think>\n\n{_REPLY}"
            again = self._render([*self._opening(_FIRST), _assistant(thought), _user(_SECOND)])
            if _REASONING in again:
                return
            problem = "drops the reasoning of earlier turns"
        if not keep_reasoning:
            raise TemplateRewritesHistory(
                f"the chat template {problem}, so the policy would be trained on a context that "
                "it did not see. Use an append-only template, or set keep_reasoning=True to keep "
                "all sampled tokens"
            )

    def _encode(self, frame: _Frame, observation: str) -> list[int]:
        text = observation.strip() if self._trims else observation
        if not self._names_control(text):
            return list(self._tokenizer.encode(frame.fill(text), add_special_tokens=False))
        # Special tokens in an observation stay plain text: it must not end or start a turn.
        outer = [
            self._tokenizer.encode(part, add_special_tokens=False)
            for part in (frame.before, frame.after)
        ]
        return [*outer[0], *self._plain_ids(text), *outer[1]]

    def _names_control(self, text: str) -> bool:
        return any(token in text for token in self._control.values())

    def _plain_ids(self, text: str) -> list[int]:
        """Tokenize a text and treat the names of special tokens in it as plain text."""
        parts = [text]
        for token in self._control.values():
            parts = [piece for part in parts for piece in _break_up(part, token)]
        return [i for part in parts for i in self._tokenizer.encode(part, add_special_tokens=False)]


def _control_tokens(tokenizer: Any) -> dict[int, str]:
    """Ids and names of all special tokens, including those without a role such as eos."""
    named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
    added = tokenizer.added_tokens_decoder.items()
    found = [*named, *((number, token) for number, token in added if token.special)]
    return {int(number): str(token) for number, token in found if str(token)}


def chat_of(config: PolicyConfig, tokenizer: Any, system_prompt: str) -> Chat:
    """The chat of a policy with a complete system prompt."""
    return Chat(
        tokenizer,
        system_prompt,
        keep_reasoning=config.keep_reasoning,
        template_kwargs=config.chat_template_kwargs,
    )


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def _cut_once(text: str, hole: str) -> tuple[str, str]:
    before, found, after = text.partition(hole)
    if not found or hole in after:
        raise ConfigError(
            f"the chat template renders a message {text.count(hole)} times instead of once; use "
            "another template"
        )
    return before, after


def _break_up(text: str, token: str) -> list[str]:
    """Split `text` inside every `token`, so that no piece contains the token."""
    pieces = text.split(token)
    if len(pieces) == 1:
        return pieces
    half = max(1, len(token) // 2)
    joined = [pieces[0] + token[:half]]
    joined += [token[half:] + piece + token[:half] for piece in pieces[1:-1]]
    return [*joined, token[half:] + pieces[-1]]
