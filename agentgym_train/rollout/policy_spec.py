"""Names of policies on the command line, and the actors that they stand for.

```
expert                  the world's own oracle
random                  chance
hf:PATH_OR_ID           a model's folder, or its id on the hub; `hf:` may be left out
vllm:URL                a running vLLM server, with token ids both ways
vllm:MODEL@URL          the same, one of several models or adapters that it serves
openai:MODEL@URL        any endpoint that speaks OpenAI's chat protocol, such as openai:gpt@https://h/v1
LABEL=POLICY            any of these under a name of one's own
```
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args
from urllib.parse import urlsplit

from agentgym_env.errors import BadRequest
from agentgym_train.config.engines import HFSettings
from agentgym_train.engines.openai import ChatEndpoint, EndpointSettings, usage_dict
from agentgym_train.local_models import check_folder
from agentgym_train.rollout.actors import (
    ActorFactory,
    ChatSampling,
    ExpertActor,
    RandomActor,
    chat_actors,
)
from agentgym_train.rollout.agent import agent_factory, format_of

Kind = Literal["expert", "random", "hf", "vllm", "openai"]

KINDS: Final[tuple[str, ...]] = get_args(Kind)

_SOURCES: Final = ("pip",)

"""What a model's own name may begin with: `pip:NAME` is one inside an installed package."""

_LABELLED: Final = re.compile(r"([\w .+-]{1,60})=(.+)", re.DOTALL)

_SHAPES: Final = {
    "hf": "hf:PATH_OR_ID, such as hf:runs/mine/model",
    "vllm": "vllm:URL, such as vllm:http://127.0.0.1:8000",
    "openai": "openai:MODEL@URL, such as openai:gpt@https://host/v1",
}


@dataclass(frozen=True, slots=True)
class PolicyName:
    """Who is to play."""

    kind: Kind
    model: str = ""
    """A folder or hub id (hf), or a name that the server knows; vLLM has a default."""
    url: str = ""

    def __str__(self) -> str:
        if self.kind in ("expert", "random"):
            return self.kind
        return f"{self.kind}:{self.model}{'@' * bool(self.model and self.url)}{self.url}"

    @property
    def samples_tokens(self) -> bool:
        """Whether it samples at a temperature."""
        return self.kind not in ("expert", "random")


def parse_policy(text: str) -> PolicyName:
    """The policy that a text names; raises `BadRequest` with the form that was meant."""
    if text in ("expert", "random"):
        return PolicyName(text)  # type: ignore[arg-type]
    kind, colon, rest = text.partition(":")
    if not colon or (kind not in KINDS and (kind in _SOURCES or Path(text).is_dir())):
        kind, rest = "hf", text
    if kind in ("expert", "random"):
        raise BadRequest(f"{kind} takes nothing after it, got {text!r}; write {kind}")
    if kind not in KINDS:
        raise BadRequest(f"no policy {text!r}; there are expert, random, {', '.join(_FORMS)}")
    if not rest:
        raise BadRequest(f"{text!r} names nothing; write {_SHAPES[kind]}")
    if kind == "hf":
        check_folder(rest)
        return PolicyName("hf", rest)
    model, at, url = rest.rpartition("@")
    if (kind == "openai" and not model) or (at and not model) or not _is_address(url):
        raise BadRequest(f"got {text!r}; write {_SHAPES[kind]}")
    return PolicyName(kind, model, url)  # type: ignore[arg-type]


def parse_labelled(text: str) -> tuple[str, PolicyName]:
    """(label, policy) of `LABEL=POLICY`; a policy without a label is called as it is written."""
    labelled = _LABELLED.fullmatch(text)
    if labelled is None or Path(text).is_dir():
        return text, parse_policy(text)
    label, policy = labelled.groups()
    if not label.strip():
        raise BadRequest(f"{text!r} has an empty label; write LABEL=POLICY")
    return label.strip(), parse_policy(policy)


def _is_address(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


_FORMS: Final = tuple(shape.partition(",")[0] for shape in _SHAPES.values())

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@dataclass(slots=True)
class PolicySpec:
    """A policy as `policy_names` reads it; a model is loaded when it is to play."""

    policy: str
    temperature: float
    action_format: str
    agent: str
    turn_max_tokens: int
    max_tokens: int
    api_key: str | None = field(default=None, repr=False)
    tokenizer: str | None = None
    """Of a vLLM server's model, where it is not to be found under the server's own name for it."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What a model computes in; `auto` is bfloat16 on a GPU and float32 on a CPU."""
    concurrency: int = 16
    """Most requests at once to an endpoint."""
    requests_per_minute: float = 0.0
    """To an endpoint; 0 is no limit."""
    tokens_per_minute: float = 0.0
    """Of an endpoint, prompts included; 0 is no limit."""
    name: PolicyName = field(init=False)
    _endpoint: ChatEndpoint | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        agent_factory(self.agent, format_of(self.agent, self.action_format))
        self.name = parse_policy(self.policy)
        if self.name.kind == "openai":
            settings = EndpointSettings(
                self.name.model,
                self.name.url,
                self.api_key,
                concurrency=self.concurrency,
                requests_per_minute=self.requests_per_minute,
                tokens_per_minute=self.tokens_per_minute,
            )
            self._endpoint = ChatEndpoint(settings)

    @contextmanager
    def actors(self, instruction: str, run: Run) -> Iterator[ActorFactory]:
        """A maker of players. `run` runs a coroutine on the loop on which they play."""
        if self.name.kind == "expert":
            yield ExpertActor
        elif self.name.kind == "random":
            yield RandomActor
        elif self._endpoint is not None:
            try:
                yield self._chat_actors(self._endpoint, instruction)
            finally:
                run(self._endpoint.close())
        elif self.name.kind == "vllm":
            yield from self._served_actors(instruction, run)
        else:
            yield from self._model_actors(instruction, run)

    def used(self) -> dict[str, int]:
        """What an endpoint counted so far, whatever came of it."""
        return {} if self._endpoint is None else usage_dict(self._endpoint.usage)

    def _chat_actors(self, endpoint: ChatEndpoint, instruction: str) -> ActorFactory:
        form = format_of(self.agent, self.action_format)
        return chat_actors(
            endpoint,
            ChatSampling(self.turn_max_tokens, self.max_tokens, self.temperature),
            instruction="\n\n".join(part for part in (instruction, form.instructions) if part),
            action_format=form,
            agent=self.agent,
        )

    def _model_actors(self, instruction: str, run: Run) -> Iterator[ActorFactory]:
        from agentgym_train.local_models import check_available

        check_available(self.name.model)
        import torch

        from agentgym_train.models import quiet_libraries
        from agentgym_train.rollout.policy import make_policy

        quiet_libraries()
        policy = make_policy(
            self.name.model,
            instruction=instruction,
            format_name=self.action_format,
            turn_max_tokens=self.turn_max_tokens,
            max_tokens=self.max_tokens,
            agent=self.agent,
            engine=HFSettings(settle_ties=True),
            compute_dtype=None if self.dtype == "auto" else self.dtype,
        )
        if torch.cuda.is_available():
            policy.model.to("cuda")
        try:
            yield policy.actors(self.temperature)
        finally:
            run(policy.engine.close())

    def _served_actors(self, instruction: str, run: Run) -> Iterator[ActorFactory]:
        from agentgym_train.rollout.policy import served_actors

        engine, actors = served_actors(
            self.name,
            instruction=instruction,
            format_name=self.action_format,
            turn_max_tokens=self.turn_max_tokens,
            max_tokens=self.max_tokens,
            agent=self.agent,
            temperature=self.temperature,
            tokenizer=self.tokenizer,
            api_key=self.api_key,
        )
        try:
            yield actors
        finally:
            run(engine.close())
