"""Names of policies on the command line.

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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from agentgym_env.errors import ConfigError
from agentgym_train.config.checks import Typed, type_of
from agentgym_train.config.files import local_path
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.models.folders import check_folder, folder_digest

Kind = Literal["expert", "random", "hf", "vllm", "openai"]

KINDS: Final[tuple[str, ...]] = get_args(Kind)

_SOURCES: Final = ("pip", "starter")
"""Prefixes that are part of a model's name: `pip:NAME` is a model in an installed package."""

_LABELLED: Final = re.compile(r"([\w .+-]{1,60})=(.+)", re.DOTALL)

_SHAPES: Final = {
    "hf": "hf:PATH_OR_ID, such as hf:runs/mine/model",
    "vllm": "vllm:URL, such as vllm:http://127.0.0.1:8000",
    "openai": "openai:MODEL@URL, such as openai:gpt@https://host/v1",
}

FORMS: Final = tuple(shape.partition(",")[0] for shape in _SHAPES.values())
"""How a policy other than `expert` and `random` is written."""
POLICIES: Final = f"expert, random, {', '.join(FORMS)}"
"""How any policy is written, for messages and help texts."""


@dataclass(frozen=True, slots=True)
class PolicyName:
    """The name of a policy, parsed."""

    kind: Kind
    model: str = ""
    """A folder or hub id (hf), or the name on the server; optional for vLLM."""
    url: str = ""

    def __str__(self) -> str:
        if self.kind in ("expert", "random"):
            return self.kind
        return f"{self.kind}:{self.model}{'@' * bool(self.model and self.url)}{self.url}"

    def weights(self) -> str:
        """A digest of the weights in a model's folder, which training changes; else empty."""
        return folder_digest(local_path(self.model)) if self.kind == "hf" else ""

    @property
    def samples_tokens(self) -> bool:
        """Whether the policy samples tokens at a temperature."""
        return self.kind not in ("expert", "random")


def parse_policy(text: str) -> PolicyName:
    """Parse the name of a policy; raises `ConfigError` with the expected form."""
    if text in ("expert", "random"):
        return PolicyName(text)  # type: ignore[arg-type]
    kind, colon, rest = text.partition(":")
    if not colon or (kind not in KINDS and (kind in _SOURCES or Path(text).is_dir())):
        kind, rest = "hf", text
    if kind in ("expert", "random"):
        raise ConfigError(f"{kind} has no arguments, got {text!r}; write {kind}")
    if kind not in KINDS:
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
    labelled = _LABELLED.fullmatch(text)
    if labelled is None or Path(text).is_dir():
        return text, parse_policy(text)
    if not label_of(text):
        raise ConfigError(f"{text!r} has an empty label; write LABEL=POLICY")
    return label_of(text), parse_policy(labelled[2])


def label_of(text: str) -> str:
    """The label of `LABEL=POLICY`; without one, the text itself."""
    labelled = _LABELLED.fullmatch(text)
    return text if labelled is None or Path(text).is_dir() else labelled[1].strip()


def check_agent(agent: Typed, names: Iterable[PolicyName]) -> None:
    """Raise `ConfigError` for an agent that no policy has, since none of them is a model."""
    if agent != PolicyConfig().agent and all(name.kind in ("expert", "random") for name in names):
        raise ConfigError(
            f"agent {type_of(agent)!r} would change nothing: the policies expert and random are "
            "no models and play by themselves; leave it out, or name another policy"
        )


def _is_address(url: str) -> bool:
    address = urlsplit(url)
    return address.scheme in ("http", "https") and bool(address.hostname)
