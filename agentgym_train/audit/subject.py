"""The subject of an audit: a model with its template, chat, episodes and stored episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from agentgym_env.tools import ACT, ToolSpec
from agentgym_env.trajectory import Trajectory
from agentgym_train.audit.episodes import Episodes, sample_episodes
from agentgym_train.audit.rules import ConversationDifference, RuleSkipped
from agentgym_train.config.policy import AuditSettings
from agentgym_train.config.rl import RLConfig
from agentgym_train.engines.base import GenerationEngine
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.models.loading import end_ids
from agentgym_train.models.positions import positions_of, within
from agentgym_train.rollout.chat import Chat, TemplateRewritesHistory, chat_of, rendered
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.tool_syntaxes import call_id

_MARK = "XMARKX"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The stored episodes of a run."""

    config: RLConfig
    trajectories: dict[str, Sequence[Trajectory]]
    """Episodes by file name."""


class TemplateRenderer:
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
            return [_message("user", observation)]
        if self.has_system:
            return [_message("system", self.instruction), _message("user", observation)]
        return [_message("user", f"{self.instruction}\n\n{observation}")]

    def conversation(self, first: str, turns: list[tuple[str, str]]) -> list[dict[str, Any]]:
        """The messages after some (reply, observation) turns."""
        messages = self.opening(first)
        for reply, observation in turns:
            answer = _message("user", observation)
            if self.tools:
                answer = _message("tool", observation)
                answer |= {"name": self.tools[0].name, "tool_call_id": call_id(0)}
            messages += [self.reply(reply), answer]
        return messages

    def reply(self, text: str, **more: str) -> dict[str, Any]:
        """The message of a reply, or of a call of the first tool with this text."""
        if not self.tools:
            return {**_message("assistant", text), **more}
        function = {"name": self.tools[0].name, "arguments": {"action": text}}
        calls = [{"type": "function", "id": call_id(0), "function": function}]
        return {**_message("assistant", ""), "tool_calls": calls}

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
            return _MARK in self.render([_message("system", _MARK), _message("user", "x")])
        except Exception:
            # Templates raise various exceptions for unsupported roles.
            return False


class AuditedModel:
    """The audited model, and data that several rules use."""

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        settings: AuditSettings,
        *,
        engine: GenerationEngine | None = None,
        stored: StoredRun | None = None,
    ) -> None:
        """Raises `ConfigError` if `max_tokens` was set above the model's positions."""
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings = within(settings, positions_of(model.config))
        self.stored = stored
        self._engine = engine
        self.instruction = settings.system_prompt()
        tools = [ACT] if settings.form.name == "tools" else []
        self.end_ids = end_ids(model.generation_config)
        self.template = TemplateRenderer(
            tokenizer, self.instruction, settings.chat_template_kwargs, tools
        )
        self.kept_reasoning = False
        """Whether the chat keeps reasoning that the template alone would drop."""
        self.chat_error: str | None = None
        self.chat: Chat | None = None
        try:
            self.chat = self._make_chat()
        except Exception as error:
            # Templates are third-party code and raise any exception; a rule reports it.
            self.chat_error = str(error) or type(error).__name__

    @cached_property
    def engine(self) -> GenerationEngine:
        """The engine that samples."""
        return self._engine or HFEngine(self.model, self.tokenizer.pad_token_id)

    @cached_property
    def played(self) -> Episodes | Exception:
        """The episodes, or why there are none, which a rule reports."""
        config = replace(self.settings, model=self.name, keep_reasoning=self.kept_reasoning)
        try:
            policy = Policy(
                config, self.model, self.tokenizer, self.require_chat(), self.engine,
                self.instruction,
            )  # fmt: skip
            return sample_episodes(
                policy, self.settings, [*self.template.control_tokens().values()]
            )
        except Exception as error:
            return error

    @property
    def episodes(self) -> Episodes:
        """The episodes; raises `RuleSkipped` if there are none."""
        self.require_chat()
        if isinstance(self.played, Exception):
            raise RuleSkipped("the episodes failed")
        return self.played

    def require_chat(self) -> Chat:
        """The chat; raises `RuleSkipped` if there is none."""
        if self.chat is None:
            raise RuleSkipped("agentgym does not support the chat template")
        return self.chat

    def reply(self, action: str) -> str:
        """The text of a turn that demonstrates an action."""
        chat = self.require_chat()
        form = chat.form(self.settings.form)
        return chat.demonstration(form.render(action) if self.template.tools else action)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, including special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def place(
        self, where: str, at: int, expected: Sequence[int], found: Sequence[int]
    ) -> ConversationDifference:
        """The place of token `at`, with the next ids and their text on both sides."""
        sides = [list(ids[at : at + 6]) for ids in (expected, found)]
        return ConversationDifference(where, at, sides[0], sides[1], *map(self.decode, sides))

    def chat_with(self, prompt: str, tools: Sequence[ToolSpec], *, keep_reasoning: bool) -> Chat:
        """The chat of an environment with this system prompt and these tools."""
        settings = replace(self.settings, keep_reasoning=keep_reasoning)
        return chat_of(settings, self.tokenizer, prompt, tools, self.end_ids)

    def _make_chat(self) -> Chat:
        try:
            return self.chat_with(self.instruction, (), keep_reasoning=False)
        except TemplateRewritesHistory as error:
            # Apply the other rules with reasoning kept; the rule `chat` reports this error.
            chat = self.chat_with(self.instruction, (), keep_reasoning=True)
            self.kept_reasoning = True
            if not self.settings.keep_reasoning:
                self.chat_error = str(error)
            return chat


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
