"""Samples from the model that vLLM servers serve, without updating its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_env.errors import BadRequest, ConfigError
from agentgym_train.config.engines import ServerSettings, check_address
from agentgym_train.engines.vllm.server import VLLMServerEngine
from agentgym_train.engines.vllm.wire import Member, Unreachable, VLLMWire
from agentgym_train.event_loop import run_async

_FITTING = "a vLLM server's address looks like http://host:8000"
_PROBE = "Task 1: crème brûlée (北京) 🙂\n\tx = [3.14, 'no']  Got 12 oak planks."
"""Text that different tokenizers are unlikely to tokenize alike."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a server serves."""

    name: str
    """Name of the model in requests."""
    source: str
    """Folder or hub id of the model and its tokenizer."""
    max_model_len: int
    """Maximum tokens per conversation."""


class ServedEngine(VLLMServerEngine):
    """Samples from the model that servers serve, without updating its weights.

    Log-probabilities are the server's: with vLLM's default `--logprobs-mode raw_logprobs` those at
    temperature 1, regardless of the turn's temperature.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        tokenizer: Any,
        settings: ServerSettings,
        *,
        max_tokens: int,
        model: str | None,
        api_key: str | None,
    ) -> None:
        """Does not contact the servers; `served_engine` does."""
        members = [Member(address) for address in addresses]
        super().__init__(members, settings, max_tokens=max_tokens, api_key=api_key)
        self._tokenizer = tokenizer
        self._wanted = model

    async def check(self) -> None:
        """Check every server now, so that errors are reported before the first episode."""
        try:
            for member in self._fleet.members:
                await self._get_to_know(member)
        except Unreachable as error:
            raise _nobody(error) from error
        finally:
            await self._wire.close()

    async def update_weights(self, model: Any, version: int) -> None:
        """Raises `ConfigError`: this engine does not change the servers' weights."""
        raise ConfigError(
            "this engine cannot update its servers' weights; set engine: vllm for training "
            "(docs/engines.md)"
        )

    async def _get_to_know(self, member: Member) -> None:
        """Check that a new or restarted server has the expected model and tokenizer.

        Raises `ConfigError` if not.
        """
        known = await _served(self._wire, member.address, self._wanted)
        if known.max_model_len < self._max_tokens:
            raise ConfigError(
                f"{member.address} supports conversations of {known.max_model_len} tokens, but "
                f"max_tokens is {self._max_tokens}; start it with --max-model-len "
                f"{self._max_tokens}, or lower max_tokens"
            )
        text = _PROBE + "".join(self._tokenizer.all_special_tokens)
        body = {"model": known.name, "prompt": text, "add_special_tokens": False}
        theirs = (await self._wire.call(member.address, "/tokenize", body))["tokens"]
        if theirs != list(self._tokenizer.encode(text, add_special_tokens=False)):
            raise ConfigError(
                f"{member.address} serves {known.name} with another tokenizer than the local one; "
                f"use the tokenizer of {known.source!r}, which the server loaded"
            )
        member.model = known.name


def served_model(url: str, *, model: str | None = None, api_key: str | None = None) -> ServedModel:
    """The model that a vLLM server serves: the first one, or the one named `model`.

    Raises `ConfigError` if no vLLM server responds, or if it does not serve the model.
    """

    async def ask() -> ServedModel:
        wire = VLLMWire(30.0, api_key)
        try:
            return await _served(wire, _address(url, api_key), model)
        except Unreachable as error:
            raise _nobody(error) from error
        finally:
            await wire.close()

    return run_async(ask())


def served_engine(
    url: str | Sequence[str],
    tokenizer: Any,
    *,
    max_tokens: int,
    model: str | None = None,
    api_key: str | None = None,
    settings: ServerSettings | None = None,
) -> ServedEngine:
    """Make an engine that samples from running vLLM servers.

    `tokenizer` must equal the servers' tokenizer. `max_tokens` is the maximum per conversation.
    Raises `ConfigError` if a server does not respond or does not match. The
    engine is bound to the loop that first uses it.
    """
    urls = [url] if isinstance(url, str) else list(url)
    addresses = [_address(each, api_key) for each in urls]
    engine = ServedEngine(
        addresses,
        tokenizer,
        settings or ServerSettings(),
        max_tokens=max_tokens,
        model=model,
        api_key=api_key,
    )
    run_async(engine.check())
    return engine


async def _served(wire: VLLMWire, address: str, wanted: str | None) -> ServedModel:
    try:
        await wire.call(address, "/version")
        cards = (await wire.call(address, "/v1/models"))["data"]
    except BadRequest as error:
        raise ConfigError(
            f"{address} is not a vLLM server, or rejects the API key: {error}. Pass the key of a "
            "server with --api-key; for other endpoints use the policy openai:MODEL@URL"
        ) from error
    card = next((card for card in cards if wanted in (None, card["id"])), None)
    if card is None:
        raise ConfigError(
            f"{address} does not serve the model {wanted!r}; choose from "
            f"{', '.join(card['id'] for card in cards)}"
        )
    # An adapter's card names its base model, which has the tokenizer and the length.
    base = next((other for other in cards if other["id"] == card.get("parent")), card)
    return ServedModel(card["id"], base["root"], base["max_model_len"])


def _address(url: str, api_key: str | None) -> str:
    check_address(url, api_key, _FITTING)
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _nobody(error: Unreachable) -> ConfigError:
    return ConfigError(
        f"no vLLM server responds: {error}. Start one with `vllm serve MODEL`, or check the address"
    )
