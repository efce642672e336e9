"""The policies that `agentgym eval` is given, with their settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import typer

from agentgym_env.errors import ConfigError
from agentgym_train.config.options import WORLD, settings_of
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.evaluation.plan import PolicyPlan, policy_plans
from agentgym_train.rollout.policy_name import PolicyName, check_agent, label_of, parse_labelled
from agentgym_train.rollout.policy_spec import PolicySpec

_KEYS: Final = {"openai": "OPENAI_API_KEY", "vllm": "VLLM_API_KEY"}


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The options of `eval` for models and their servers."""

    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Tokenizer of a vllm: policy. Default: the model that the server loaded."
        ),
    ] = None
    api_key_env: Annotated[
        str | None,
        typer.Option(
            help="Environment variable with the API key. Default: OPENAI_API_KEY or VLLM_API_KEY."
        ),
    ] = None
    requests_per_minute: Annotated[
        float, typer.Option(min=0.0, help="Rate limit of an openai: endpoint; 0 sets none.")
    ] = 0.0
    tokens_per_minute: Annotated[
        float,
        typer.Option(
            min=0.0, help="Rate limit of an openai: endpoint, including prompts; 0 sets none."
        ),
    ] = 0.0

    def spec(self, name: PolicyName, settings: PolicyConfig, concurrency: int) -> PolicySpec:
        """One policy; its model is not loaded yet."""
        variable = self.api_key_env or _KEYS.get(name.kind)
        key = os.environ.get(variable) if variable and name.kind in _KEYS else None
        return PolicySpec(
            replace(settings, model=str(name)), api_key=key, tokenizer=self.tokenizer,
            concurrency=concurrency, requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """The policies of an evaluation in one world."""

    settings: PolicyConfig
    """The settings that they share; each has its own model."""
    plans: Sequence[PolicyPlan]
    specs: Mapping[str, PolicySpec]
    labels: Sequence[str]
    """All labels, also of those that are missing."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Label -> why it cannot be run."""


def _in_world(text: str, world: str) -> str:
    """A policy's text for a world; `{world}/NAME` is a folder, never a hub's id."""
    return re.sub(rf"(^|[=:]){re.escape(WORLD)}/", rf"\1./{WORLD}/", text).replace(WORLD, world)


@dataclass(frozen=True, slots=True)
class PolicyWords:
    """What a command line says about the policies."""

    texts: Sequence[str]
    given: Mapping[str, Any]
    """The fields of `PolicyConfig` that have an option."""
    run: str | None
    """The run whose settings are used for the others."""
    models: ModelOptions
    concurrency: int

    def policies(self, env: str = "") -> Policies:
        """The policies in an environment; raises `ConfigError` for one that cannot be run."""
        return self._policies(PolicyConfig(**settings_of(self.run, self.given, env)))

    def by_world(self, worlds: Mapping[str, str]) -> dict[str, Policies]:
        """The policies in each world; `worlds` are their names, `{world}` in folders, and ids.

        A policy of which the model or the settings are missing in a world is listed there under
        `missing`; raises `ConfigError` for any other that cannot be run.
        """
        if self.run is None and not any(WORLD in text for text in self.texts):
            return dict.fromkeys(worlds, self.policies())
        return {world: self._policies_in(world, env) for world, env in worlds.items()}

    def _policies_in(self, world: str, env: str) -> Policies:
        try:
            settings = PolicyConfig(**settings_of(self.run, self.given, env, world))
            reason = ""
        except ConfigError as error:
            if WORLD not in (self.run or ""):
                raise
            settings, reason = PolicyConfig(**self.given), str(error)
        return self._policies(settings, world, reason)

    def _policies(self, settings: PolicyConfig, world: str = "", no_settings: str = "") -> Policies:
        labels = [label_of(text) for text in self.texts]
        named: list[tuple[str, PolicyName]] = []
        missing: dict[str, str] = {}
        for label, text in zip(labels, self.texts, strict=True):
            varies = bool(world) and WORLD in text
            try:
                name = parse_labelled(_in_world(text, world) if varies else text)[1]
            except ConfigError as error:
                if not varies:
                    raise
                missing[label] = str(error)
                continue
            if no_settings and name.samples_tokens:
                missing[label] = no_settings
            else:
                named.append((label, name))
        if not missing:
            check_agent(settings.agent, (name for _, name in named))
        return Policies(
            settings=settings, plans=policy_plans(named), missing=missing,
            specs={
                label: self.models.spec(name, settings, self.concurrency) for label, name in named
            },
            labels=labels,
        )  # fmt: skip
