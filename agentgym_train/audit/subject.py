"""What is audited: one model with its tokenizer, under the settings it would be trained with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from agentgym_env.actions import ActionFormat, action_format
from agentgym_env.errors import AgentGymError
from agentgym_env.trajectory import Trajectory
from agentgym_train.audit.episodes import Episodes, play
from agentgym_train.audit.findings import NotApplicable, Place
from agentgym_train.audit.settings import Settings
from agentgym_train.audit.template import Template
from agentgym_train.chat import Chat, TemplateRewritesHistory
from agentgym_train.config import TrainConfig
from agentgym_train.engines.hf import HFEngine
from agentgym_train.engines.protocol import GenerationEngine
from agentgym_train.policy import Policy


@dataclass(frozen=True, slots=True)
class Stored:
    """The episodes that a run kept, and the model they are held against."""

    config: TrainConfig
    trajectories: dict[str, Sequence[Trajectory]]
    """By file name."""
    version: int | None
    """Weight version of the audited model; None if it is not known."""


class Subject:
    """The audited model, and what is found out about it once and used by several rules."""

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        settings: Settings,
        *,
        engine: GenerationEngine | None = None,
        stored: Stored | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings
        self.stored = stored
        self._engine = engine
        self.format: ActionFormat = action_format(settings.action_format)
        told = (settings.instruction, self.format.instructions)
        self.instruction = "\n\n".join(part for part in told if part)
        self.template = Template(tokenizer, self.instruction)
        self.kept_reasoning = False
        """Whether the chat is append-only although its template alone would not be."""
        self.chat_error: str | None = None
        self.chat: Chat | None = None
        try:
            self.chat = self._make_chat()
        except Exception as error:
            # Templates are programs of others and raise what they like; a rule reports it.
            self.chat_error = str(error) or type(error).__name__

    @cached_property
    def engine(self) -> GenerationEngine:
        """What samples."""
        return self._engine or HFEngine(self.model, self.tokenizer.pad_token_id)

    @cached_property
    def _played(self) -> Episodes | Exception:
        try:
            return play(self._policy(), self.settings, self.template.control_tokens())
        except Exception as error:
            return error

    @property
    def played(self) -> Episodes:
        """The episodes, as the trainer got them; raises what kept them from being played."""
        if isinstance(self._played, Exception):
            raise self._played
        return self._played

    @property
    def episodes(self) -> Episodes:
        """`played`, for rules that say nothing of why there are none."""
        self.require_chat()
        if isinstance(self._played, Exception):
            raise NotApplicable("the episodes could not be played")
        return self._played

    def require_chat(self) -> Chat:
        """The chat; skips the rule where there is none."""
        if self.chat is None:
            raise NotApplicable("agentgym cannot use the chat template")
        return self.chat

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def place(self, where: str, at: int, expected: Sequence[int], found: Sequence[int]) -> Place:
        """The place of token `at`, with some ids and the text of both sides from there on."""
        sides = [list(ids[at : at + 6]) for ids in (expected, found)]
        return Place(where, at, sides[0], sides[1], *map(self.decode, sides))

    def _make_chat(self) -> Chat:
        try:
            chat = Chat(self.tokenizer, self.instruction)
        except TemplateRewritesHistory as error:
            # The other rules can still be looked at; this one is told as it is.
            chat = Chat(self.tokenizer, self.instruction, keep_reasoning=True)
            self.kept_reasoning = True
            if not self.settings.keep_reasoning:
                self.chat_error = str(error)
        return chat

    def _policy(self) -> Policy:
        if self.chat is None:
            raise AgentGymError("no episode can be played without a chat template")
        return Policy(
            name=self.name,
            model=self.model,
            tokenizer=self.tokenizer,
            chat=self.chat,
            engine=self.engine,
            action_format=self.format,
            instruction=self.instruction,
            turn_max_tokens=self.settings.turn_max_tokens,
            max_tokens=self.settings.max_tokens,
        )
