"""Token ids of pieces of a conversation, as the tokenizer sees them in the whole.

Names of special tokens in a piece stay plain text, since no observation may end a turn. Knows
nothing about chat templates.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

_CONTEXTS: Final = ("\n", "=", "x")
"""Texts that a text can follow, so that a tokenizer does not take it for the beginning of one."""


class TextIds:
    """Encodes texts with one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.control = _control_tokens(tokenizer)
        """Ids and names of the special tokens."""
        names = self.control.values()
        self._heads = tuple({name[:end] for name in names for end in range(2, len(name))})
        self._tails = tuple({name[begin:] for name in names for begin in range(1, len(name) - 1)})
        # What a template writes beside a text could complete a name, mostly by one character.
        self._adds_space = self.ids("\nx") != [*self.ids("\n"), *self.ids("x")]
        """Whether the tokenizer puts a space before the first word of a text."""

    def ids(self, text: str) -> list[int]:
        """The ids of a text that begins a conversation, or begins with a special token."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def marked(self, value: Any, mark: str) -> Any:
        """Messages with a mark, which every template keeps, where a special token is named.

        Another mark is where a name begins or ends that the template could complete. `mark` is in
        none of the texts.
        """
        if isinstance(value, str):
            before = f"{mark}X" if value.startswith(self._tails) else ""
            after = f"{mark}X" if value.endswith(self._heads) else ""
            for number, token in self.control.items():
                value = value.replace(token, f"{mark}{number}X")
            return before + value + after
        if isinstance(value, list):
            return [self.marked(each, mark) for each in value]
        if isinstance(value, Mapping):
            return {self.marked(key, mark): self.marked(v, mark) for key, v in value.items()}
        return value

    def structure(self, text: str, mark: str, hidden: Sequence[str] = ()) -> list[int]:
        """The ids of what a template wrote; what marks stand for stays plain text.

        The mark of the whole text `hidden[i]` has the number `hi`.
        """
        parts = [""]
        for place, piece in enumerate(re.split(f"{mark}(h?[0-9]*)X", text)):
            if not place % 2:
                parts[-1] += piece
            elif not piece:
                parts.append("")
            elif piece.startswith("h"):
                parts += [*self._broken_up(hidden[int(piece[1:])]), ""]
            else:
                first, *further = self._broken_up(self.control[int(piece)])
                parts[-1] += first
                parts += further
        return [*self.ids(parts[0]), *(i for part in parts[1:] for i in self.following(part))]

    def place_of_special(self, text: str) -> int | None:
        """The place of the first special token in a text."""
        places = (text.find(token) for token in self.control.values())
        return min((place for place in places if place >= 0), default=None)

    def special_at_start(self, text: str) -> int | None:
        """The special token that a text begins with, if it does."""
        ids = self.ids(text)
        return ids[0] if ids and ids[0] in self.control else None

    def since_special(self, text: str) -> str:
        """The end of a text from its last special token on."""
        place = max((text.rfind(token) for token in self.control.values()), default=-1)
        return text[max(place, 0) :]

    def names_special(self, text: str) -> bool:
        """Whether a text has the name of a special token in it, or a part of one at its ends."""
        if text.startswith(self._tails) or text.endswith(self._heads):
            return True
        return any(token in text for token in self.control.values())

    def plain(self, text: str, special: Collection[str] = (), before: str = "") -> list[int]:
        """The ids of a text after `before`, in which names of other special tokens stay text."""
        first, *parts = self._broken_up(text, special)
        further = [i for part in parts for i in self.following(part)]
        return [*self.following(first, before), *further]

    def _broken_up(self, text: str, special: Collection[str] = ()) -> list[str]:
        """The pieces of a text, none of which has the name of another special token."""
        parts = [text]
        for token in self.control.values():
            if token not in special:
                parts = [piece for part in parts for piece in _break_up(part, token)]
        return parts

    def text_after(self, before: str, ids: Sequence[int]) -> str:
        """The text of ids that follow a text: many tokenizers drop a space that begins one.

        Without a space that the tokenizer itself puts there, as some do after a special token.
        """
        if not self._adds_space or not before:
            return self._decoded(ids)
        text = self._decoded_after(before, ids)
        known = " x" if text.startswith("  ") else "x"
        own = self._decoded_after(before, self.following(known, before)).removesuffix(known)
        return text.removeprefix(own)

    def _decoded_after(self, before: str, ids: Sequence[int]) -> str:
        context = self.ids(before)
        return self._decoded([*context, *ids])[len(self._decoded(context)) :]

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def following(self, text: str, before: str = "") -> list[int]:
        """The ids of a text that follows another one, which is not the beginning of a text.

        Many tokenizers put a space before the first word of what they are given.
        """
        for context in (before, *(_CONTEXTS if self._adds_space else ())):
            head = self.ids(context)
            whole = self.ids(context + text) if head else []
            if head and whole[: len(head)] == head:
                return whole[len(head) :]
        return self.ids(text)


def _control_tokens(tokenizer: Any) -> dict[int, str]:
    """Ids and names of all special tokens, including those without a role such as eos."""
    named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
    added = tokenizer.added_tokens_decoder.items()
    found = [*named, *((number, token) for number, token in added if token.special)]
    return {int(number): str(token) for number, token in found if str(token)}


def _break_up(text: str, token: str) -> list[str]:
    """Split `text` inside every `token`, so that no piece contains the token."""
    pieces = text.split(token)
    if len(pieces) == 1:
        return pieces
    half = max(1, len(token) // 2)
    joined = [pieces[0] + token[:half]]
    joined += [token[half:] + piece + token[:half] for piece in pieces[1:-1]]
    return [*joined, token[half:] + pieces[-1]]
