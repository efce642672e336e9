"""The subject of an audit: a model with its chat, template, episodes and stored runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from agentgym_env.actions import ActionFormat
from agentgym_env.errors import AgentGymError
from agentgym_env.tools import ACT
from agentgym_env.trajectory import Trajectory
from agentgym_train.audit.episodes import Episodes, play
from agentgym_train.audit.rules import NotApplicable, Place
from agentgym_train.audit.template import Template
from agentgym_train.config.audit import AuditSettings
from agentgym_train.config.rl import RLConfig
from agentgym_train.data.tokenize import tools_of
from agentgym_train.engines.base import GenerationEngine
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.models.loading import end_ids
from agentgym_train.models.positions import lowered, positions_of
from agentgym_train.rollout.chat import Chat, TemplateRewritesHistory, chat_of
from agentgym_train.rollout.policy import Policy


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored episodes of a run, and the version of the audited model."""

    config: RLConfig
    trajectories: dict[str, Sequence[Trajectory]]
    """Episodes by file name."""
    version: int | None
    """Weight version of the audited model; None if unknown."""


class Subject:
    """The audited model, and data that several rules use."""

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        settings: AuditSettings,
        *,
        engine: GenerationEngine | None = None,
        stored: Stored | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        # A rule reports a max_tokens that was set above them.
        self.settings = settings = lowered(settings, positions_of(model.config))
        self.stored = stored
        self._engine = engine
        self.instruction = settings.system_prompt()
        tools = [ACT] if settings.form.name == "tools" else []
        self.end_ids = end_ids(model.generation_config)
        self.template = Template(tokenizer, self.instruction, settings.chat_template_kwargs, tools)
        self._views: dict[tuple[str, str], tuple[Chat, Template]] = {}
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
    def _played(self) -> Episodes | Exception:
        try:
            return play(self._policy(), self.settings, self.template.control_tokens())
        except Exception as error:
            return error

    @property
    def played(self) -> Episodes:
        """The episodes in the trainer; raises the error if they failed."""
        if isinstance(self._played, Exception):
            raise self._played
        return self._played

    @property
    def episodes(self) -> Episodes:
        """As `played`, but raises `NotApplicable` if the episodes failed."""
        self.require_chat()
        if isinstance(self._played, Exception):
            raise NotApplicable("the episodes failed")
        return self._played

    def require_chat(self) -> Chat:
        """The chat; raises `NotApplicable` if there is none."""
        if self.chat is None:
            raise NotApplicable("agentgym does not support the chat template")
        return self.chat

    def reply(self, action: str) -> str:
        """The text of a turn with an action, as the template has it: with tools, a call."""
        if self.template.tools:
            return self.form.render(action)
        found = (self.template.turn(action, thinking=thinking) for thinking in (False, True))
        return next((text for text in found if text is not None), action)

    @property
    def form(self) -> ActionFormat:
        """The action format; raises `NotApplicable` if there is no chat."""
        return self.require_chat().form(self.settings.form)

    def view(self, trajectory: Trajectory, config: RLConfig) -> tuple[Chat, Template]:
        """The chat and the template of a stored episode's environment."""
        chat = self.require_chat()
        if not config.envs and not self.template.tools:
            return chat, self.template
        key = trajectory.instruction, trajectory.env
        if key not in self._views:
            prompt, values = trajectory.instruction, self.settings.chat_template_kwargs
            tools = tools_of(trajectory.env) if self.template.tools else []
            kept = self.kept_reasoning or self.settings.keep_reasoning
            settings = replace(self.settings, keep_reasoning=kept)
            self._views[key] = (
                chat_of(settings, self.tokenizer, prompt, tools, self.end_ids),
                Template(self.tokenizer, prompt, values, tools),
            )
        return self._views[key]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, including special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def place(self, where: str, at: int, expected: Sequence[int], found: Sequence[int]) -> Place:
        """The place of token `at`, with the next ids and their text on both sides."""
        sides = [list(ids[at : at + 6]) for ids in (expected, found)]
        return Place(where, at, sides[0], sides[1], *map(self.decode, sides))

    def _make_chat(self) -> Chat:
        try:
            chat = self._chat_that(keep_reasoning=False)
        except TemplateRewritesHistory as error:
            # Apply the other rules with reasoning kept; the rule `chat` reports this error.
            chat = self._chat_that(keep_reasoning=True)
            self.kept_reasoning = True
            if not self.settings.keep_reasoning:
                self.chat_error = str(error)
        return chat

    def _chat_that(self, *, keep_reasoning: bool) -> Chat:
        settings = replace(self.settings, keep_reasoning=keep_reasoning)
        return chat_of(settings, self.tokenizer, self.instruction, (), self.end_ids)

    def _policy(self) -> Policy:
        if self.chat is None:
            raise AgentGymError("episodes need a chat template")
        return Policy(
            config=replace(self.settings, model=self.name, keep_reasoning=self.kept_reasoning),
            model=self.model,
            tokenizer=self.tokenizer,
            chat=self.chat,
            engine=self.engine,
            instruction=self.instruction,
        )
