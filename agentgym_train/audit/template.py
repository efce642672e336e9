"""The tokenizer's own chat template, asked directly: what `chat.py` is held against.

Shares no code with `chat.py`, so that a mistake there is not made here as well.
"""

from __future__ import annotations

from typing import Any

_MARK = "XMARKX"


class Template:
    """Renders conversations of one tokenizer as its template alone would."""

    def __init__(self, tokenizer: Any, instruction: str) -> None:
        self.tokenizer = tokenizer
        self.instruction = instruction
        self.has_system = self._has_system()

    def render(self, messages: list[dict[str, str]], generate: bool = True, **values: Any) -> str:
        """The text of a conversation, up to where the policy speaks if `generate`."""
        return str(
            self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generate, **values
            )
        )

    def opening(self, observation: str) -> list[dict[str, str]]:
        """The first messages: instruction and first observation."""
        if not self.instruction:
            return [message("user", observation)]
        if self.has_system:
            return [message("system", self.instruction), message("user", observation)]
        return [message("user", f"{self.instruction}\n\n{observation}")]

    def conversation(self, first: str, turns: list[tuple[str, str]]) -> list[dict[str, str]]:
        """The messages after some (reply, observation) turns."""
        messages = self.opening(first)
        for reply, observation in turns:
            messages += [message("assistant", reply), message("user", observation)]
        return messages

    def after_reply(self, observation: str) -> str:
        """What the template writes between a reply's text and the next: ends, separators, all."""
        messages = self.conversation(_MARK[1:], [(_MARK, observation)])
        return self.render(messages).partition(_MARK)[2]

    def ids(self, text: str) -> list[int]:
        """The ids of a rendering, tokenised as a whole."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def control_tokens(self) -> dict[int, str]:
        """Ids that a template or an engine obeys, by the tokenizer's own flags."""
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
            # Templates raise their own exceptions on roles they lack.
            return False


def message(role: str, content: str) -> dict[str, str]:
    """One message as templates read it."""
    return {"role": role, "content": content}
