"""Chat: append-only conversations of token ids that keep sampled tokens unchanged.

The first prompt is the chat template's rendering of the instruction and the first observation.
After that, each turn's sampled ids are kept, and each observation is appended as the template's
delta. Nothing is tokenized twice. Knows nothing about models or environments.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import ConfigError
from agentgym_env.reasoning import MARKS, opens_reasoning, reply_of
from agentgym_env.tools import ACT, ToolSpec
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.event_loop import in_main_thread
from agentgym_train.rollout.agent import is_black_box
from agentgym_train.rollout.text_ids import TextIds
from agentgym_train.rollout.tool_calls import ToolFormat, ToolResult
from agentgym_train.rollout.tool_syntaxes import (
    PROBE,
    BadCall,
    Parse,
    WrittenCall,
    call_id,
    placeholder,
    syntax_of,
)

# Drawn anew in each process: what a policy or an agent writes cannot contain them.
_FIRST = placeholder()
_REPLY = placeholder()
_SECOND = placeholder()
_REASONING = placeholder()
_THOUGHT = f"<think>\n{_REASONING}\n</think>\n\n"
_REASONED: Final = {"reasoning_content": _REASONING, "thinking": _REASONING}
"""Reasoning as the fields of a message that templates read."""
_QUOTED = f'{placeholder()}"B\nCX'
"""A result that JSON writes in another way."""

_MAX_FRAMES: Final = 1024
"""Frames of results that are kept; a policy chooses which calls it combines."""

TEMPLATE_S: Final = 10.0
"""Seconds that a chat template may take to render a conversation."""


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **values: Any) -> str:
    """The text of a conversation by a tokenizer's chat template.

    Raises `TimeoutError` if the template takes too long, which is noticed in the main thread only,
    and not on Windows. A template may raise anything.
    """
    if not hasattr(signal, "setitimer") or not in_main_thread():
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
        tools: Sequence[ToolSpec] = (),
        end_ids: Collection[int] = (),
    ) -> None:
        """With `tools`, observations are their results, and a turn is a call of some of them.

        `end_ids` are the model's own end tokens, from its generation config; sampling stops at
        them, at the tokenizer's, and where the template ends a reply or a call.
        """
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"the tokenizer {getattr(tokenizer, 'name_or_path', '')!r} has no chat "
                "template; add one with `agentgym models NAME --save FOLDER "
                "--chat-template chatml`"
            )
        self._tokenizer = tokenizer
        self._kwargs = dict(template_kwargs or {})
        self._tools = tuple(tools)
        if tools:
            self._kwargs["tools"] = [tool.as_function() for tool in tools]
        self._instruction = instruction
        self._texts = TextIds(tokenizer)
        self._control = self._texts.control
        added = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}
        self.end_ids = added.intersection(end_ids)
        """The model's own end tokens; a config's default may name an ordinary piece of text."""
        self._parse_calls: Parse | None = None
        self._probe: dict[str, Any] = {}
        """A turn with a call."""
        self._result_frames: dict[tuple[str, ...], list[str]] = {}
        self._reply = self._reply_frame()
        self._in_replies = self._special_in_replies()
        """Special tokens that are part of a turn: those of channels, reasoning and calls."""
        if tools:
            self._read_syntax(keep_reasoning)
        else:
            self._check_history(keep_reasoning)
        self._trims = _spaced(_FIRST) not in self._render([_user(_spaced(_FIRST))])
        self._first = self._first_frame()
        self._next = self._next_frame()
        self._opened = opens_reasoning(self._first.after)
        """What the prompt begins of the policy's reasoning."""
        self._set_ends()

    def start(self, observation: str) -> list[int]:
        """The ids of the first prompt, up to the start of the policy's first turn."""
        if self._texts.names_special(observation):
            return self._encode(self._first, observation)
        try:
            # Render both: instruction and observation may share a message, trimmed as one.
            return self._texts.ids(self._render(self._opening(observation)))
        except ConfigError:  # of this text, which may be the policy's: the template does not see it
            return self._encode(self._first, observation)

    def delta(
        self, response_ids: Sequence[int], observation: str, results: Sequence[ToolResult] = ()
    ) -> list[int]:
        """The ids between two sampled turns: the observation, after an end token if missing.

        With tools, `results` are those of the calls, and the observation is one if there are none.
        """
        if self._tools:
            results = results or [ToolResult(self._tools[0].name, observation)]
            ids = self._result_ids(results)
        else:
            ids = self._encode(self._next, observation)
        return self.without_end(response_ids, ids)

    def without_end(self, response_ids: Sequence[int], ids: list[int]) -> list[int]:
        """The ids after a turn, without the end token that the turn has itself.

        Some templates end the last turn with another token than earlier ones, as harmony does.
        """
        if not response_ids or not ids:
            return ids
        end = response_ids[-1], ids[0]
        return ids[1:] if end[0] == end[1] or end == self._last_and_earlier else ids

    def text_of(self, response_ids: Sequence[int]) -> str:
        """The policy's text: the sampled ids, decoded without the token that ended the turn.

        Where the prompt opens a block of reasoning, the text begins with its mark.
        """
        ids = list(response_ids)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        return self._opened + self._texts.text_after(self._prompt_end, ids)

    def response_ids(self, text: str) -> list[int]:
        """The ids of a turn with this text after the prompt, including its end token."""
        bare, mark = text.lstrip(), self._opened.strip()
        if mark and bare.startswith(mark):
            text = bare[len(self._opened if bare.startswith(self._opened) else mark) :]
        return [*self._texts.plain(text, self._in_replies, self._prompt_end), self.end_id]

    def demonstration(self, text: str) -> str:
        """The text of a turn that shows this reply: what the template renders after its prompt.

        That is the reply in its channel, or after a block of reasoning without content. A text
        that has these itself stays as it is.
        """
        before, after = self._reply.before, self._reply.after
        structure = [token for token in self._control.values() if token in before]
        if reply_of(text) != text or any(token in text for token in structure):
            return text
        text = text if text.startswith(before) else before + text
        return text if text.endswith(after) else text + after

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The ids of any conversation, up to where the policy speaks."""
        return self._encoded(messages, self._render)

    def suffix(self, messages: Sequence[Mapping[str, Any]], *, called: bool) -> list[int]:
        """The ids between two sampled turns for any messages, from the first turn's end token on.

        `called` is whether the first turn calls tools.
        """
        opening = self._opening(_FIRST)
        reply = self._probe if called else _assistant(_REPLY)

        def after(further: Sequence[Mapping[str, Any]]) -> str:
            text = self._render([*opening, reply, *further])
            if not called:
                rest = _cut_once(text, _REPLY)[1]
                return rest[self._texts.place_of_special(rest) or 0 :]
            text = text[len(self._render(opening)) :]
            return text[self._end_after(text, str(PROBE.arguments["text"])) :]

        return self._encoded(messages, after)

    def _encoded(
        self,
        messages: Sequence[Mapping[str, Any]],
        render: Callable[[Sequence[Mapping[str, Any]]], str],
    ) -> list[int]:
        """The ids of rendered messages, in which the names of special tokens stay plain text."""
        mark = placeholder()
        shown: list[dict[str, Any]] = self._texts.marked(list(messages), mark)
        try:
            return self._texts.structure(render(shown), mark)
        except ConfigError:
            # Of a text, which may be the policy's, or of the messages' order: then it raises again.
            for number, message in enumerate(shown):
                message["content"] = f"{mark}h{number}X" if message.get("content") else ""
            hidden = [self._content(message) for message in messages]
            return self._texts.structure(render(shown), mark, hidden)

    def _content(self, message: Mapping[str, Any]) -> str:
        """The text of a message as the template writes it."""
        text = message.get("content") or ""
        if message["role"] == "tool" and self._tools:
            return self._result_text(text)
        return text.strip() if self._trims else text

    def calls_in(self, text: str) -> list[WrittenCall | BadCall]:
        """The tool calls in a policy's text; empty without tools."""
        reply = reply_of(text)
        return [] if self._parse_calls is None or reply is None else self._parse_calls(reply)

    def form(self, plain: ActionFormat) -> ActionFormat:
        """The action format of the conversation: `plain`, or with tools that of their calls."""
        if self._parse_calls is None:
            return plain
        return ToolFormat(self._tools, self._parse_calls, self._written)

    def _written(self, calls: Sequence[WrittenCall]) -> str:
        """The text of a response with these calls, up to its end token."""
        given = json.dumps([dict(call.arguments) for call in calls], ensure_ascii=False)
        if self._texts.names_special(given):
            raise ConfigError(
                f"a tool call with the arguments {given[:120]} cannot be written: they contain a "
                "special token of the tokenizer"
            )
        name = calls[-1].name
        opening = self._opening(_FIRST)
        messages = [*opening, _called(*calls), _result(name, 0, _SECOND)]
        start, text = self._render(opening), self._render(messages, generate=False)
        if not text.startswith(start):  # The template asks for reasoning: an empty one.
            place = len(opening)
            messages[place] = {**self._probe, "tool_calls": messages[place]["tool_calls"]}
            text = self._render(messages, generate=False).replace(_REASONING, "")
        text = text[len(start) :]
        return text[: text.rindex(self._frame_of((name,))[0] + _SECOND)]

    def _render(self, messages: Sequence[Mapping[str, Any]], generate: bool = True) -> str:
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
        return _Frame(before[self._end_place(before) :], after)

    def _reply_frame(self) -> _Frame:
        """The template's text around a reply, from its prompt to the end of the turn.

        A block of reasoning that the prompt opens is closed as the template closes one.
        """
        opening = self._opening(_FIRST)
        start, plain = self._render(opening), _assistant(_REPLY)
        thinking = ({**plain, **_REASONED}, _assistant(_THOUGHT + _REPLY))
        for reply in (plain, *thinking):
            whole = self._render([*opening, reply], generate=False)
            if whole.startswith(start):
                before, after = _cut_once(whole[len(start) :], _REPLY)
                return _Frame(before.replace(_REASONING, ""), after[: self._end_place(after)])
        # The template drops the reasoning of a reply, although its prompt asks for some.
        after = _cut_once(self._render([*opening, plain], generate=False), _REPLY)[1]
        opened = opens_reasoning(start)
        closing = next((end for mark, end in MARKS if opened.startswith(mark)), "")
        before = f"\n{closing}\n\n" if closing else ""
        return _Frame(before, after[: self._end_place(after)])

    def _special_in_replies(self) -> frozenset[str]:
        opening, reply = self._opening(_FIRST), {**_assistant(_REPLY), **_REASONED}
        start, whole = self._render(opening), self._render([*opening, reply], generate=False)
        inside = whole[len(start) :].partition(_REPLY)[0] if whole.startswith(start) else ""
        inside += self._reply.before
        return frozenset(token for token in self._control.values() if token in inside)

    def _read_syntax(self, keep_reasoning: bool) -> None:
        """How the template writes calls and their results, and whether it changes earlier turns."""
        opening, result = self._opening(_FIRST), _result(PROBE.name, 0, _SECOND)
        start = self._render(opening)
        if self._tools[0].name not in start:
            raise ConfigError(
                "the chat template does not show tools, so the policy could not call them; use a "
                "template with tools, or another action_format"
            )
        self._probe = probe = self._probe_after(start)
        whole = self._render([*opening, probe, result], generate=False)
        if str(PROBE.arguments["text"]) not in whole or _SECOND not in whole:
            raise ConfigError(
                "the chat template does not show tool calls and their results; use a template "
                "with tools, or another action_format"
            )
        rendered = whole[len(start) : whole.index(_SECOND)]
        call = rendered[: self._end_after(rendered, str(PROBE.arguments["text"]))]
        self._parse_calls = syntax_of(call)
        self._in_replies |= {token for token in self._control.values() if token in call}
        escaped = self._render([*opening, probe, _result(PROBE.name, 0, _QUOTED)], False)
        self._json_results = _QUOTED not in escaped and json.dumps(_QUOTED)[1:-1] in escaped
        self._trims_results = _spaced(_SECOND) not in self._render(
            [*opening, probe, _result(PROBE.name, 0, _spaced(_SECOND))], False
        )
        thought = {**probe, "content": _THOUGHT}
        now = self._render([*opening, thought], generate=False)
        later = self._render([*opening, thought, result, probe, result], generate=False)
        again = self._render([*opening, probe, result, probe, result], generate=False)
        if not again.startswith(whole):
            problem = "changes earlier turns"
        elif _REASONING in now and _REASONING not in later:
            problem = "drops the reasoning of earlier turns"
        else:
            return
        if not keep_reasoning:
            raise TemplateRewritesHistory(_rewrites(problem))

    def _probe_after(self, start: str) -> dict[str, Any]:
        """A call that begins as the template asks for a turn: with reasoning, if need be."""
        opening, plain = self._opening(_FIRST), _called(PROBE)
        thinking = ({"content": _THOUGHT}, {"reasoning_content": _REASONING})
        for probe in (plain, *({**plain, **extra} for extra in thinking)):
            if self._render([*opening, probe], generate=False).startswith(start):
                return probe
        raise TemplateRewritesHistory(
            "the chat template begins a turn with a call in another way than it asks for one, so "
            "the policy would be trained on a context that it did not see; use another template, "
            "or other chat_template_kwargs"
        )

    def _end_after(self, text: str, mark: str) -> int:
        """The place of the first special token after `mark`, which ends the turn."""
        begin = text.index(mark) + len(mark)
        place = self._texts.place_of_special(text[begin:])
        if place is None:
            raise ConfigError(
                "the chat template ends a tool call without a special token, so a policy could not "
                "end its turn; use another template"
            )
        return begin + place

    def _end_place(self, text: str) -> int:
        """The place of the special token that ends a turn, after nothing but spaces; else 0."""
        place = self._texts.place_of_special(text) or 0
        return 0 if text[:place].strip() else place

    def _frame_of(self, names: tuple[str, ...]) -> list[str]:
        """The texts before, between and after the results of calls with these names."""
        if names not in self._result_frames:
            if len(self._result_frames) == _MAX_FRAMES:
                self._result_frames.clear()
            opening = self._opening(_FIRST)
            holes = [placeholder() for _ in names]
            messages = [
                _result(name, number, hole)
                for number, (name, hole) in enumerate(zip(names, holes, strict=True))
            ]
            called = _called(WrittenCall(names[0], PROBE.arguments))
            text = self._render([*opening, {**self._probe, **called}, *messages])
            text = text[len(self._render(opening)) :]
            rest = text[self._end_after(text, str(PROBE.arguments["text"])) :]
            parts = []
            for hole in holes:
                before, rest = _cut_once(rest, hole)
                parts.append(before)
            self._result_frames[names] = [*parts, rest]
        return self._result_frames[names]

    def _result_ids(self, results: Sequence[ToolResult]) -> list[int]:
        parts = self._frame_of(tuple(result.name for result in results))
        texts = [self._result_text(result.text) for result in results]
        if not any(map(self._texts.names_special, texts)):
            return self._texts.ids(
                parts[0] + "".join(t + p for t, p in zip(texts, parts[1:], strict=True))
            )
        ids = self._texts.ids(parts[0])
        for before, text, part in zip(parts, texts, parts[1:], strict=False):
            ids += self._texts.plain(text, before=self._texts.since_special(before))
            ids += self._texts.following(part)
        return ids

    def _result_text(self, text: str) -> str:
        text = text.strip() if self._trims_results else text
        return json.dumps(text, ensure_ascii=False)[1:-1] if self._json_results else text

    def _set_ends(self) -> None:
        """Where a turn ends: a reply that is the last, an earlier one, and a call."""
        opening = [*self._opening(_FIRST), _assistant(_REPLY)]
        last = _cut_once(self._render(opening, generate=False), _REPLY)[1]
        earlier = self._texts.special_at_start(self._next.before)
        answer = self._texts.special_at_start(last[self._end_place(last) :])
        answer = earlier if answer is None else answer
        self._last_and_earlier = answer, earlier
        call = self._frame_of((self._tools[0].name,))[0] if self._tools else ""
        end = self._texts.special_at_start(call) if self._tools else answer
        if end is None:
            raise ConfigError(
                f"the chat template ends a turn with {self._next.before[:40]!r}, which is not a "
                "special token, so a policy could not end its turn. Use a template with an "
                "end-of-turn token"
            )
        self.end_id: int = end
        """The token that ends a demonstrated turn."""
        stops = {end, answer, self._tokenizer.eos_token_id, *self.end_ids} - {None}
        self.stop_ids: tuple[int, ...] = tuple(sorted(stops))
        """Token ids that end a turn."""
        self._prompt_end = self._texts.since_special(self._first.after)
        """The end of a prompt, which a turn follows."""

    def _check_history(self, keep_reasoning: bool) -> None:
        start = self._render(self._opening(_FIRST))
        reply = [*self._opening(_FIRST), _assistant(_REPLY), _user(_SECOND)]
        second = self._render(reply)
        third = self._render([*reply, _assistant(_REPLY), _user(_SECOND)])
        delta = second[len(start) :]
        if not second.startswith(start + self._reply.before + _REPLY) or third != second + delta:
            problem = "changes earlier turns"
        else:
            thoughts = _assistant(_THOUGHT + _REPLY), {**_assistant(_REPLY), **_REASONED}
            if not any(map(self._drops_reasoning, thoughts)):
                return
            problem = "drops the reasoning of earlier turns"
        if not keep_reasoning:
            raise TemplateRewritesHistory(_rewrites(problem))

    def _drops_reasoning(self, reply: Mapping[str, Any]) -> bool:
        """Whether a reply is rendered with its reasoning only while it is the last message."""
        conversation = [*self._opening(_FIRST), reply]
        shown = _REASONING in self._render(conversation, generate=False)
        return shown and _REASONING not in self._render([*conversation, _user(_SECOND)])

    def _encode(self, frame: _Frame, observation: str) -> list[int]:
        text = observation.strip() if self._trims else observation
        if not self._texts.names_special(text):
            return self._texts.ids(frame.fill(text))
        # Special tokens in an observation stay plain text: it must not end or start a turn.
        ids, after = self._texts.ids(frame.before), self._texts.following(frame.after)
        before = self._texts.since_special(frame.before)
        return [*ids, *self._texts.plain(text, before=before), *after]


def chat_of(
    config: PolicyConfig,
    tokenizer: Any,
    system_prompt: str,
    tools: Sequence[ToolSpec] = (),
    end_ids: Collection[int] = (),
) -> Chat:
    """The chat of a policy with a complete system prompt.

    `tools` are those of the environment, which the action format `tools` uses. `end_ids` are the
    model's own end tokens.
    """
    return Chat(
        tokenizer,
        system_prompt,
        # The gateway splits the rows of a black-box agent where the template drops reasoning.
        keep_reasoning=config.keep_reasoning or is_black_box(config.agent),
        template_kwargs=config.chat_template_kwargs,
        tools=(tools or [ACT]) if config.form.name == "tools" else (),
        end_ids=end_ids,
    )


def _rewrites(problem: str) -> str:
    return (
        f"the chat template {problem}, so the policy would be trained on a context that it did not "
        "see. Use an append-only template, or set keep_reasoning=True to keep all sampled tokens"
    )


def _called(*calls: WrittenCall) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [call.as_message(number) for number, call in enumerate(calls)],
    }


def _result(name: str, number: int, content: str) -> dict[str, Any]:
    return {"role": "tool", "name": name, "tool_call_id": call_id(number), "content": content}


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def _spaced(text: str) -> str:
    """A text after more spaces than a template writes itself."""
    return f"    {text}"


def _cut_once(text: str, hole: str) -> tuple[str, str]:
    before, found, after = text.partition(hole)
    if not found or hole in after:
        raise ConfigError(
            f"the chat template renders a message {text.count(hole)} times instead of once; use "
            "another template"
        )
    return before, after
