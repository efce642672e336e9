"""Joins the model calls of a black-box agent into rows of tokens; knows nothing about HTTP.

A call whose messages continue an earlier call and our reply to it continues that call's row, with
the ids that were sampled. A call with another history begins a new row. Each sampled token is under
the mask of exactly one row.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agentgym_env.reasoning import reasoning_in, reply_of
from agentgym_env.spaces import clean_json
from agentgym_env.tools import ToolSpec
from agentgym_env.trajectory import Tokens
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import Generation
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.model_actors import EpisodeTokens

Message = Mapping[str, Any]
_OUR_ID: Final = re.compile("[A-Za-z0-9]{9}")
_MAX_CHATS: Final = 64
"""Chats that are kept, one for each set of tools."""


def canonical(message: Message) -> dict[str, Any]:
    """What of a message matters: role, text, calls and the call that it answers.

    Clients send our replies back with further fields, and with their own spelling of no text.
    """
    content = message.get("content") or ""
    if message["role"] == "assistant":
        content = content.strip()
    found: dict[str, Any] = {"role": message["role"], "content": content}
    calls = message.get("tool_calls")
    if calls:
        found["tool_calls"] = [
            {
                "id": call.get("id", ""),
                "name": call["function"]["name"],
                "arguments": _parsed(call["function"].get("arguments")),
            }
            for call in calls
        ]
    if message.get("tool_call_id"):
        found["tool_call_id"] = message["tool_call_id"]
    return found


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates take them, with arguments as objects and names of results."""
    names: dict[str, str] = {}
    made = []
    for message in map(canonical, messages):
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["name"]
        calls = [
            {
                "type": "function",
                "id": _template_id(call["id"]),
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in message.get("tool_calls", ())
        ]
        role = "system" if message["role"] == "developer" else message["role"]
        shown = {**message, "role": role, **({"tool_calls": calls} if calls else {})}
        if message["role"] == "tool":
            shown["name"] = names.get(message.get("tool_call_id", ""), "")
            shown["tool_call_id"] = _template_id(message.get("tool_call_id", ""))
        made.append(shown)
    return made


def _template_id(identity: str) -> str:
    """An id as every template takes it: nine letters and digits, as those that we give."""
    if _OUR_ID.fullmatch(identity):
        return identity
    return hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()[:9]


def _parsed(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        return clean_json(json.loads(arguments or "{}"))
    except (ValueError, RecursionError):
        return arguments


class Chats:
    """The chats of one policy, by the tools that a request has."""

    def __init__(self, tokenizer: Any, config: PolicyConfig, end_ids: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._end_ids = end_ids
        self._chats: OrderedDict[str, Chat] = OrderedDict()

    def with_tools(self, tools: Sequence[ToolSpec]) -> Chat:
        """The chat with these tools; raises `ConfigError` if the template cannot show them."""
        key = json.dumps([tool.as_function() for tool in tools], sort_keys=True)
        if key not in self._chats:
            # Rows that the template would rewrite are split, so that reasoning may be kept here.
            self._chats[key] = Chat(
                self._tokenizer,
                keep_reasoning=True,
                template_kwargs=self._config.chat_template_kwargs,
                tools=tools,
                end_ids=self._end_ids,
            )
            if len(self._chats) > _MAX_CHATS:
                self._chats.popitem(last=False)
        self._chats.move_to_end(key)
        return self._chats[key]


@dataclass(slots=True, eq=False)
class RecordedRow:
    """A row in the making, and the calls whose turns it has."""

    tokens: EpisodeTokens
    calls: list[RecordedCall] = field(default_factory=list)
    conversation: object = field(default_factory=object)
    """Its name for the engine, which keeps its cache."""


@dataclass(slots=True, eq=False)
class RecordedCall:
    """A call with our reply to it."""

    text: str
    """The sampled text."""
    digest: bytes
    """Of the messages up to the reply."""
    end: int
    """Completion tokens of the row up to the reply's last one."""
    calls_tools: bool
    reasoning: str
    """What the text has before the reply that the agent got."""
    reasons: bool
    """Whether the text or an earlier one of the row contains reasoning."""
    row: RecordedRow
    size: tuple[int, int]
    """Completion tokens and turns of the row before this call."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    """The steps in the environment that followed it."""
    cut: bool = False
    """Whether the text ended at `turn_max_tokens`."""

    @property
    def ids(self) -> list[int]:
        """Everything up to the reply's last token."""
        return [*self.row.tokens.prompt_ids, *self.row.tokens.completion_ids[: self.end]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready to be sampled."""

    chat: Chat
    prompt_ids: list[int]
    suffix: list[int]
    """The end of the prompt, after the reply of `after`."""
    digest: bytes
    """Of the request's messages."""
    after: RecordedCall | None
    """The call that it continues."""
    conversation: object
    """The row's name for the engine; a new one where another call may continue the same one."""


class EpisodeRecorder:
    """The rows of one episode."""

    def __init__(self, chats: Chats, tokenizer: Any, *, keep_reasoning: bool) -> None:
        """`keep_reasoning` keeps reasoning in the context that the template would drop.

        Without it such a call begins a new row, with the template's own rendering.
        """
        self._chats = chats
        self._tokenizer = tokenizer
        self._keep_reasoning = keep_reasoning
        self._calls: dict[bytes, RecordedCall] = {}
        self.rows: list[RecordedRow] = []
        self.conversations: list[object] = []
        """All names that the engine was given."""
        self._sampling: list[object] = []
        """Those of requests that are being sampled."""

    def prepare(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Prepared:
        """The prompt of a request. Raises `ConfigError` if the template cannot render it.

        Every request that was prepared is ended by `sampled`.
        """
        chat = self._chats.with_tools(tools)
        seed = json.dumps([tool.as_function() for tool in tools], sort_keys=True).encode()
        digests = _digests(seed, messages)
        shown = self._with_reasoning(for_template(messages), digests)
        for count in range(len(messages) - 1, 0, -1):
            after = self._calls.get(digests[count])
            if after is None:
                continue
            before = after.ids
            suffix = chat.suffix(shown[count:], called=after.calls_tools)
            suffix = chat.without_end(before, suffix)
            prompt = [*before, *suffix]
            if after.reasons and not self._keep_reasoning and self._rewrites(chat, shown, prompt):
                break
            return Prepared(chat, prompt, suffix, digests[-1], after, self._named(after))
        return Prepared(chat, chat.prompt(shown), [], digests[-1], None, self._named(None))

    def _with_reasoning(
        self, shown: list[dict[str, Any]], digests: Sequence[bytes]
    ) -> list[dict[str, Any]]:
        """Messages in which our replies reason again; the template decides what of it is shown."""
        for message, digest in zip(shown, digests[1:], strict=True):
            call = self._calls.get(digest)
            if call is not None and call.reasoning not in message["content"]:
                message["content"] = call.reasoning + message["content"]
        return shown

    def _named(self, after: RecordedCall | None) -> object:
        name = object()
        if after is not None and after.row.calls and after.row.calls[-1] is after:
            name = name if after.row.conversation in self._sampling else after.row.conversation
        self.conversations.append(name)
        self._sampling.append(name)
        return name

    def _rewrites(self, chat: Chat, shown: Sequence[Message], prompt: Sequence[int]) -> bool:
        """Whether the template alone renders the conversation in another way."""
        return bool(
            self._tokenizer.decode(chat.prompt(shown)) != self._tokenizer.decode(list(prompt))
        )

    def add(
        self, prepared: Prepared, generation: Generation, text: str, reply: Message
    ) -> RecordedCall:
        """Record a sampled reply; `reply` is the message that the agent gets."""
        after = prepared.after
        if after is not None and after.row.calls and after.row.calls[-1] is after:
            row = after.row
            size = len(row.tokens.completion_ids), len(row.tokens.turn_ends)
            row.tokens.add_observation(prepared.suffix)
        else:
            first = EpisodeTokens(list(prepared.prompt_ids))
            row, size = RecordedRow(first, conversation=prepared.conversation), (0, 0)
            self.rows.append(row)
        row.tokens.add_response(generation)
        call = RecordedCall(
            text=text,
            digest=_extended(prepared.digest, reply),
            end=len(row.tokens.completion_ids),
            calls_tools=bool(reply.get("tool_calls")),
            reasoning=reasoning_in(text),
            reasons=reply_of(text) != text or (after is not None and after.reasons),
            row=row,
            size=size,
        )
        row.calls.append(call)
        self._calls[call.digest] = call
        return call

    def sampled(self, prepared: Prepared) -> None:
        """The request is no longer being sampled, whatever came of it."""
        self._sampling.remove(prepared.conversation)

    def drop(self, call: RecordedCall) -> bool:
        """Remove a call that the agent never got; False if another one continues it."""
        row = call.row
        if row.calls[-1] is not call:
            return False
        row.calls.pop()
        if self._calls.get(call.digest) is call:
            del self._calls[call.digest]
        if not row.calls:
            self.rows.remove(row)
            return True
        tokens, (length, turns) = row.tokens, call.size
        for values in (
            tokens.completion_ids,
            tokens.loss_mask,
            tokens.logprobs,
            tokens.versions,
        ):
            del values[length:]
        del tokens.turn_ends[turns:]
        return True

    def finish(self) -> tuple[list[Tokens], list[RecordedCall]]:
        """The rows, and their calls in the order of the rows."""
        rows = [row.tokens.freeze() for row in self.rows]
        return rows, [call for row in self.rows for call in row.calls]


def token_logprobs(tokenizer: Any, generation: Generation) -> list[dict[str, Any]]:
    """The sampled tokens with their log-probabilities, as OpenAI returns them.

    The texts add up to the decoded reply: where several tokens are one character, the last has it.
    """
    ids, found, start, end = generation.token_ids, [], 0, 0
    for place, logprob in enumerate(generation.logprobs, 1):
        # Decoded after the tokens before it, since a tokenizer may drop a first space.
        before, text = (tokenizer.decode(ids[start:stop]) for stop in (end, place))
        text = text[len(before) :]
        if text.endswith("\N{REPLACEMENT CHARACTER}") and place < len(ids):
            text = ""
        else:
            start, end = end, place
        given = {"token": text, "bytes": list(text.encode()), "logprob": logprob}
        found.append({**given, "top_logprobs": []})
    return found


def _digests(seed: bytes, messages: Sequence[Message]) -> list[bytes]:
    """(n + 1) digests: of the tools, and of the messages up to each one."""
    found = [hashlib.blake2b(seed, digest_size=16).digest()]
    for message in messages:
        found.append(_extended(found[-1], message))
    return found


def _extended(digest: bytes, message: Message) -> bytes:
    text = json.dumps(canonical(message), sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(digest + text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
