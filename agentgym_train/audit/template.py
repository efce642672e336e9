"""Renders conversations with a tokenizer's chat template alone, as the rules expect them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_env.tools import ToolSpec
from agentgym_train.audit.host import PLAIN
from agentgym_train.rollout.chat import rendered
from agentgym_train.rollout.tool_calls import ToolResult
from agentgym_train.rollout.tool_syntaxes import call_id

_MARK = "XMARKX"


class Template:
    """Renders conversations with a tokenizer's chat template alone, without `Chat`."""

    def __init__(
        self,
        tokenizer: Any,
        instruction: str,
        values: Mapping[str, Any] | None = None,
        tools: Sequence[ToolSpec] = (),
    ) -> None:
        """`values` are the arguments of the chat template; with `tools`, replies are calls."""
        self.tokenizer = tokenizer
        self._values = dict(values or {})
        self.tools = list(tools)
        if tools:
            self._values["tools"] = [tool.as_function() for tool in tools]
        self.instruction = instruction
        self.has_system = self._has_system()

    def render(self, messages: list[dict[str, Any]], generate: bool = True, **values: Any) -> str:
        """The text of a conversation, up to where the policy speaks if `generate`."""
        values = {**self._values, **values}
        return rendered(self.tokenizer, messages, add_generation_prompt=generate, **values)

    def opening(self, observation: str) -> list[dict[str, Any]]:
        """The first messages: instruction and first observation."""
        if not self.instruction:
            return [message("user", observation)]
        if self.has_system:
            return [message("system", self.instruction), message("user", observation)]
        return [message("user", f"{self.instruction}\n\n{observation}")]

    def conversation(self, first: str, turns: list[tuple[str, str]]) -> list[dict[str, Any]]:
        """The messages after some (reply, observation) turns."""
        messages = self.opening(first)
        for reply, observation in turns:
            messages += [self.reply(reply), *self._answers(observation)]
        return messages

    def reply(self, text: str) -> dict[str, Any]:
        """The message of a reply, or of a call of the first tool with this text."""
        return _call(self.tools[0].name, text) if self.tools else message("assistant", text)

    def turn(self, reply: str, *, thinking: bool = False) -> str | None:
        """The text of a turn with a reply, from the prompt to the end of the turn.

        `thinking` has it reason, with no content. None if it follows another prompt than the
        template gives.
        """
        opening, reasoning = self.opening(PLAIN), {"reasoning_content": _MARK, "thinking": _MARK}
        said = {**message("assistant", _MARK[1:]), **(reasoning if thinking else {})}
        prompt, whole = self.render(opening), self.render([*opening, said], False)
        if not whole.startswith(prompt):
            return None
        before, _, after = whole[len(prompt) :].replace(_MARK, "").partition(_MARK[1:])
        return before + reply + after[: len(after) - len(self._from_end(after))]

    def _from_end(self, text: str) -> str:
        """A text from its first special token on, if only spaces come before."""
        place = self._place_of_special(text)
        return text if text[:place].strip() else text[place:]

    def _place_of_special(self, text: str) -> int:
        """The place of the first special token in a text; 0 if it has none."""
        places = (text.find(token) for token in self.control_tokens().values() if token)
        return min((place for place in places if place >= 0), default=0)

    def _answers(
        self, observation: str, results: Sequence[ToolResult] = ()
    ) -> list[dict[str, Any]]:
        if not self.tools:
            return [message("user", observation)]
        results = results or [ToolResult(self.tools[0].name, observation)]
        return [
            {"name": r.name, "tool_call_id": call_id(number), **message("tool", r.text)}
            for number, r in enumerate(results)
        ]

    def after_reply(self, observation: str, results: Sequence[ToolResult] = ()) -> str:
        """The template's text between a reply and the next one, with all separators.

        With tools, `results` are those of the reply's calls.
        """
        called = results[0].name if results else self.tools[0].name if self.tools else ""
        reply = _call(called, _MARK) if self.tools else message("assistant", _MARK)
        messages = [*self.opening(_MARK[1:]), reply, *self._answers(observation, results)]
        after = self.render(messages).partition(_MARK)[2]
        if not self.tools:
            return self._from_end(after)
        return after[self._place_of_special(after) :]

    def ids(self, text: str) -> list[int]:
        """The ids of a rendering, tokenized as a whole."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def control_tokens(self) -> dict[int, str]:
        """Ids and names of the special tokens, according to the tokenizer's flags."""
        found = {
            int(number): str(token)
            for number, token in self.tokenizer.added_tokens_decoder.items()
            if getattr(token, "special", True)
        }
        named = zip(self.tokenizer.all_special_ids, self.tokenizer.all_special_tokens, strict=True)
        found.update({int(number): str(token) for number, token in named if number is not None})
        return dict(sorted(found.items()))

    def _has_system(self) -> bool:
        try:
            return _MARK in self.render([message("system", _MARK), message("user", "x")])
        except Exception:
            # Templates raise various exceptions for unsupported roles.
            return False


def message(role: str, content: str) -> dict[str, Any]:
    """A message in the format of chat templates."""
    return {"role": role, "content": content}


def _call(name: str, text: str) -> dict[str, Any]:
    function = {"name": name, "arguments": {"action": text}}
    calls = [{"type": "function", "id": call_id(0), "function": function}]
    return {**message("assistant", ""), "tool_calls": calls}
