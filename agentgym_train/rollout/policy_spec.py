"""Policies by name, and their actors; a model is loaded when they are made.

```
expert                  the environment's oracle
random                  random actions
hf:PATH_OR_ID           a model's folder or hub id; the prefix `hf:` is optional
vllm:URL                a running vLLM server, by token ids
vllm:MODEL@URL          one of several models or adapters of a vLLM server
openai:MODEL@URL        an OpenAI-compatible chat endpoint, such as openai:gpt@https://h/v1
LABEL=POLICY            any of these with a label
```
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args
from urllib.parse import urlsplit

from agentgym_env.errors import ConfigError
from agentgym_env.tools import ToolSpec
from agentgym_train.config.checks import Typed, type_of
from agentgym_train.config.engines import HFSettings, OwnEngine
from agentgym_train.config.files import local_path
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.models.folders import check_folder, folder_digest
from agentgym_train.rollout.actors import ExpertActor, RandomActor
from agentgym_train.rollout.run_episode import EpisodeActorFactory

if TYPE_CHECKING:
    from agentgym_train.engines.openai import ChatEndpoint
    from agentgym_train.rollout.policy import Policy

Kind = Literal["expert", "random", "hf", "vllm", "openai"]

Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on the loop of the actors."""

_SOURCES: Final = ("pip", "starter")
"""Prefixes that are part of a model's name: `pip:NAME` is a model in an installed package."""

_LABELLED: Final = re.compile(r"([\w .+-]{1,60})=(.+)", re.DOTALL)

_SHAPES: Final = {
    "hf": "hf:PATH_OR_ID, such as hf:runs/mine/model",
    "vllm": "vllm:URL, such as vllm:http://127.0.0.1:8000",
    "openai": "openai:MODEL@URL, such as openai:gpt@https://host/v1",
}

POLICIES: Final = ", ".join(["expert", "random", *(s.partition(",")[0] for s in _SHAPES.values())])
"""How any policy is written, for messages and help texts."""


@dataclass(frozen=True, slots=True)
class PolicyName:
    """The name of a policy, parsed."""

    kind: Kind
    model: str = ""
    """A folder or hub id (hf), or the name on the server; optional for vLLM."""
    url: str = ""

    def __str__(self) -> str:
        if not self.samples_tokens:
            return self.kind
        return f"{self.kind}:{self.model}{'@' * bool(self.model and self.url)}{self.url}"

    def weights(self) -> str:
        """A digest of the weights in a model's folder, which training changes; else empty."""
        return folder_digest(local_path(self.model)) if self.kind == "hf" else ""

    @property
    def samples_tokens(self) -> bool:
        """Whether the policy samples tokens at a temperature."""
        return self.kind not in ("expert", "random")

    @property
    def reports_ids(self) -> bool:
        """Whether the ids of sampled tokens are known."""
        return self.kind in ("hf", "vllm")


@dataclass(slots=True)
class PolicySpec:
    """A policy by name, such as `vllm:URL`; its model is loaded when `actors` is called."""

    config: PolicyConfig
    """`config.model` is the policy's name."""
    api_key: str | None = field(default=None, repr=False)
    tokenizer: str | None = None
    """Folder or hub id of the tokenizer of a vLLM server; default: the model that it loaded."""
    concurrency: int = 16
    """Maximum concurrent requests to an endpoint."""
    requests_per_minute: float = 0.0
    """Rate limit of an endpoint; 0 is no limit."""
    tokens_per_minute: float = 0.0
    """Rate limit of an endpoint, including prompts; 0 is no limit."""
    name: PolicyName = field(init=False)
    _endpoint: ChatEndpoint | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.config.check_policy()
        self.name = parse_policy(self.config.model)
        if self.name.kind == "openai":
            from agentgym_train.engines.openai import ChatEndpoint, EndpointSettings

            settings = EndpointSettings(
                self.name.model, self.name.url, self.api_key, concurrency=self.concurrency,
                requests_per_minute=self.requests_per_minute,
                tokens_per_minute=self.tokens_per_minute,
            )  # fmt: skip
            self._endpoint = ChatEndpoint(settings)

    @contextmanager
    def actors(
        self, instruction: str, run: Run, tools: Sequence[ToolSpec] = ()
    ) -> Iterator[EpisodeActorFactory]:
        """Make actors for an environment; `run` runs a coroutine on their loop."""
        form = self.config.form
        # Only a chat template can write tool calls.
        written = None if form.name == "tools" else form
        if self.name.kind == "expert":
            yield partial(ExpertActor, written)
        elif self.name.kind == "random":
            yield partial(RandomActor, written)
        elif self._endpoint is not None:
            from agentgym_train.rollout.chat_actors import chat_actors

            try:
                yield chat_actors(
                    self._endpoint, self.config, env_instruction=instruction, tools=tools
                )
            finally:
                run(self._endpoint.close())
        else:
            policy = self._policy(instruction, tools)
            # Only now, since it loads torch, and an unknown model is reported before.
            from agentgym_train.rollout.policy import give_weights

            try:
                if policy.model is not None:
                    run(give_weights(policy))
                yield policy.actors()
            finally:
                run(policy.close())

    def used(self) -> dict[str, int]:
        """The endpoint's token and request counts so far, including failed requests."""
        return {} if self._endpoint is None else asdict(self._endpoint.usage)

    def _policy(self, instruction: str, tools: Sequence[ToolSpec]) -> Policy:
        """Load the model, or connect to its server."""
        if self.name.kind == "vllm":
            return served_policy(
                self.name, self.config, env_instruction=instruction, tools=tools,
                tokenizer=self.tokenizer, api_key=self.api_key,
            )  # fmt: skip
        from agentgym_train.models.available import check_available

        check_available(self.name.model)
        import torch

        from agentgym_train.models.loading import quiet_libraries
        from agentgym_train.rollout.policy import make_policy

        quiet_libraries()
        config, engine = replace(self.config, model=self.name.model), self.config.engine_settings()
        if isinstance(engine, HFSettings) and engine.settle_ties is None:
            engine = replace(engine, settle_ties=True)
        policy = make_policy(config, env_instruction=instruction, tools=tools, engine=engine)
        # vLLM places its own copy.
        if isinstance(engine, HFSettings | OwnEngine) and torch.cuda.is_available():
            policy.model.to("cuda")
        return policy


def parse_policy(text: str) -> PolicyName:
    """Parse the name of a policy; raises `ConfigError` with the expected form."""
    if text in ("expert", "random"):
        return PolicyName(text)  # type: ignore[arg-type]
    kind, colon, rest = text.partition(":")
    if not colon or (kind not in get_args(Kind) and (kind in _SOURCES or Path(text).is_dir())):
        kind, rest = "hf", text
    if kind in ("expert", "random"):
        raise ConfigError(f"{kind} has no arguments, got {text!r}; write {kind}")
    if kind not in get_args(Kind):
        raise ConfigError(f"unknown policy {text!r}; choose from {POLICIES}")
    if not rest:
        raise ConfigError(f"{text!r} is incomplete; write {_SHAPES[kind]}")
    if kind == "hf":
        check_folder(rest)
        return PolicyName("hf", rest)
    model, at, url = rest.rpartition("@")
    if (kind == "openai" and not model) or (at and not model) or not _is_address(url):
        raise ConfigError(f"invalid policy {text!r}; write {_SHAPES[kind]}")
    return PolicyName(kind, model, url)  # type: ignore[arg-type]


def parse_labelled(text: str) -> tuple[str, PolicyName]:
    """(label, policy) of `LABEL=POLICY`; without a label, the label is the text itself."""
    label, policy = _split(text)
    if not label:
        raise ConfigError(f"{text!r} has an empty label; write LABEL=POLICY")
    return label, parse_policy(policy)


def label_of(text: str) -> str:
    """The label of `LABEL=POLICY`; without one, the text itself."""
    return _split(text)[0]


def check_agent(agent: Typed, names: Iterable[PolicyName]) -> None:
    """Raise `ConfigError` for an agent that no policy has, since none of them is a model."""
    if agent != PolicyConfig().agent and not any(name.samples_tokens for name in names):
        raise ConfigError(
            f"agent {type_of(agent)!r} would change nothing: the policies expert and random are "
            "no models and play by themselves; leave it out, or name another policy"
        )


def served_policy(
    name: PolicyName,
    config: PolicyConfig,
    *,
    env_instruction: str,
    tools: Sequence[ToolSpec] = (),
    tokenizer: str | None = None,
    api_key: str | None = None,
) -> Policy:
    """The policy of a vLLM server, without a model here.

    `tokenizer` is a folder or hub id; default: the one that the server loaded its model from.
    Raises `ConfigError` if the server or the tokenizer is not available.
    """
    from transformers import AutoTokenizer

    from agentgym_train.engines.vllm.served import served_engine, served_model
    from agentgym_train.models.loading import served_end_ids
    from agentgym_train.models.positions import within
    from agentgym_train.rollout.policy import assembled

    served = served_model(name.url, model=name.model or None, api_key=api_key)
    source = tokenizer or served.source
    try:
        loaded = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name.url} loaded its model from {source!r}, whose tokenizer is not available here "
            f"({str(error).splitlines()[0][:200]}); set --tokenizer to a folder or hub id with it"
        ) from error
    config = within(config, served.max_model_len, name.url)
    engine = served_engine(
        name.url, loaded, max_tokens=config.max_tokens, model=served.name, api_key=api_key
    )
    config, ends = replace(config, model=f"vllm:{served.name}"), served_end_ids(source)
    return assembled(config, None, loaded, engine, ends, env_instruction, tools)


def _split(text: str) -> tuple[str, str]:
    """(label, policy)."""
    labelled = _LABELLED.fullmatch(text)
    if labelled is None or Path(text).is_dir():
        return text, text
    return labelled[1].strip(), labelled[2]


def _is_address(url: str) -> bool:
    address = urlsplit(url)
    return address.scheme in ("http", "https") and bool(address.hostname)
