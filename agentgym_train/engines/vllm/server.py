"""VLLMServerEngine: samples from vLLM servers over HTTP, by token ids.

Knows nothing about chat or environments, and does not need vLLM in the trainer's environment.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch import distributed

from agentgym_env.client.directory import Directory, directory_of
from agentgym_env.errors import BadRequest, ConfigError
from agentgym_train.config.engines import ServerSettings
from agentgym_train.engines.base import EngineLost, Generation, Sampling, UpdateGate
from agentgym_train.engines.vllm.pool import VLLMPool
from agentgym_train.engines.vllm.process import READER
from agentgym_train.engines.vllm.transports import (
    AdapterTransport,
    FileTransport,
    WeightTransport,
    sends_adapters,
)
from agentgym_train.engines.vllm.wire import Member, Unreachable, VLLMWire
from agentgym_train.models.distributed import gathered

_HOW = (
    f"start it with VLLM_SERVER_DEV_MODE=1, --worker-extension-cls {READER} and --logprobs-mode "
    "processed_logprobs (docs/engines.md)"
)


class VLLMServerEngine:
    """Balances turns over servers and keeps the servers' weights up to date.

    Before a turn the engine checks the weights of its server; a restarted server, or one with other
    weights, is updated first. If a server becomes unavailable, its turns are sampled on another one
    with the same seed. With several processes (`gathered`, `is_first`) the first one sends the
    weights, and all call `update_weights` at the same step.
    """

    is_exact = False
    """vLLM uses other kernels than the trainer, and on a GPU another precision."""

    def __init__(
        self,
        members: Sequence[Member],
        settings: ServerSettings,
        *,
        max_tokens: int,
        gathered: Callable[[Any], list[Any]] = lambda own: [own],
        is_first: bool = True,
        api_key: str | Callable[[], str | None] | None = None,
        directory: Directory | None = None,
        adapters: bool = False,
    ) -> None:
        """`max_tokens` is the maximum per conversation; servers with less are rejected.

        With `adapters` the servers get the base weights once, and then only LoRA adapters.
        """
        self.version = 0
        self._max_tokens = max_tokens
        self._gathered = gathered
        self._is_first = is_first
        self._run: str = gathered(uuid.uuid4().hex[:12])[0]
        self._updates = 0
        self._patience_s = settings.request_timeout_s + settings.wait_s
        self._label: str | None = None
        """Label of the current weights on the servers; None before the first update."""
        self._wire = VLLMWire(settings.request_timeout_s, api_key)
        self._fleet = VLLMPool(members, self._wire, settings.wait_s, directory)
        self._transport = self._make_transport(settings, adapters)
        self._gate = UpdateGate()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        conversation: Hashable | None = None,
    ) -> Generation:
        """Sample one turn; raises `EngineLost` if no server is available for `wait_s`."""
        if not prompt_ids:
            raise ConfigError("a prompt must have at least one token")
        began = time.monotonic()
        async with self._gate.turn():
            while True:
                member = await self._fleet.choose(conversation)
                member.in_flight += 1
                try:
                    await self._bring_up_to_date(member)
                    return await self._ask(member, prompt_ids, sampling)
                except Unreachable as why:
                    self._fleet.lose(member, why)
                    if time.monotonic() - began > self._patience_s:
                        raise EngineLost(f"no vLLM server could sample this turn: {why}") from why
                finally:
                    member.in_flight -= 1

    async def forget(self, conversation: Hashable) -> None:
        """Remove a conversation that ended."""
        self._fleet.forget(conversation)

    async def update_weights(self, model: Any, version: int) -> None:
        """Send `model`'s weights to every server after the running turns. A collective.

        An unavailable server gets them before its next turn.
        """
        async with self._gate.update():
            self._updates += 1
            self._label = f"{self._run}-{self._updates}"
            self.version = version
            error = await self._publish(model, self._label) if self._is_first else None
            failed = next((why for why in self._gathered(error) if why), None)
        if failed is not None:
            raise EngineLost(failed)

    def keep_own_weights(self) -> None:
        """Does nothing: the servers have their own."""

    async def sleep(self) -> None:
        """Does nothing: the servers have their own memory."""

    async def close(self) -> None:
        """Close the connections, and the servers that this process started."""
        await self._fleet.close()
        await self._wire.close()
        if self._is_first:
            self._transport.close()

    def _make_transport(self, settings: ServerSettings, adapters: bool) -> WeightTransport:
        if settings.transport == "nccl":
            from agentgym_train.engines.vllm.nccl import NCCLTransport

            return NCCLTransport(self._wire, settings.nccl_address, settings.nccl_port)
        kind = AdapterTransport if adapters else FileTransport
        return kind(self._wire, self._run, settings.weights_dir)

    async def _publish(self, model: Any, label: str) -> str | None:
        """Send the weights; returns an error message for all processes, or None."""
        try:
            self._transport.publish(model, label)
            await self._fleet.some()
            await asyncio.gather(*(self._update_or_lose(member) for member in self._fleet.present))
            await self._fleet.some()
        except Exception as error:
            # The process boundary: without a result the other processes would wait forever.
            return f"cannot send the weights to the servers: {type(error).__name__}: {error}"
        return None

    async def _update_or_lose(self, member: Member) -> None:
        try:
            await self._bring_up_to_date(member)
        except Unreachable as why:
            self._fleet.lose(member, why)

    async def _bring_up_to_date(self, member: Member) -> None:
        """Send the current weights to a server that has other ones."""
        if member.model and await self._is_up_to_date(member):
            return
        async with member.updating:
            if not member.model:
                await self._get_to_know(member)
            if await self._is_up_to_date(member):
                return
            assert self._label is not None
            await self._replace_weights(member, self._transport.weights(self._label))
            if not await self._transport.offers(member, self._label):
                await self._transport.offer(member, self._label)

    async def _is_up_to_date(self, member: Member) -> bool:
        label = self._label
        if label is None:
            return True
        has_weights = await self._weights_of(member) == self._transport.weights(label)
        return has_weights and await self._transport.offers(member, label)

    async def _replace_weights(self, member: Member, label: str) -> None:
        found = await self._weights_of(member)
        if found == label:
            return
        is_new = not str(found).startswith(self._run)
        await self._call(member, "/pause?mode=wait", {})
        # If this fails midway, no process mistakes the partial weights for a version.
        await self._call(member, "/update_weight_version", {"new_version": "incomplete"})
        await self._transport.give(member, label, is_new=is_new)
        await self._call(member, "/reset_prefix_cache", {})
        await self._call(member, "/update_weight_version", {"new_version": label})
        await self._call(member, "/resume", {})

    async def _weights_of(self, member: Member) -> str | None:
        """The label of a server's weights; None before the first update."""
        if self._label is None:
            return None
        known = await self._call(member, "/weight_info")
        return str(known["weight_version"])

    async def _get_to_know(self, member: Member) -> None:
        """Get a server's model name; raises `ConfigError` if it cannot serve this run."""
        (card, *_) = (await self._call(member, "/v1/models"))["data"]
        info = await self._call(member, "/server_info?config_format=json")
        mode = info["vllm_config"]["model_config"]["logprobs_mode"]
        if mode != "processed_logprobs":
            raise ConfigError(
                f"{member.address} returns {mode}, which ignore the temperature; {_HOW}"
            )
        if card["max_model_len"] < self._max_tokens:
            raise ConfigError(
                f"{member.address} supports conversations of {card['max_model_len']} tokens, but "
                f"max_tokens is {self._max_tokens}; start it with --max-model-len "
                f"{self._max_tokens}, or lower max_tokens"
            )
        member.model = card["id"]

    async def _ask(
        self, member: Member, prompt_ids: Sequence[int], sampling: Sampling
    ) -> Generation:
        body = {
            "model": self._transport.name(member, self._label),
            "prompt": list(prompt_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "seed": sampling.seed,
            "stop_token_ids": list(sampling.stop_ids),
            # Only the ids above end a turn, regardless of the model's generation config.
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        answer = await self._wire.call(member.address, "/v1/completions", body)
        (choice,) = answer["choices"]
        ids, reason = choice["token_ids"], choice["finish_reason"]
        if reason not in ("stop", "length"):
            raise Unreachable(f"{member.address} aborted a turn: {reason}")
        return Generation(ids, choice["logprobs"]["token_logprobs"], reason, self.version)

    async def _call(self, member: Member, path: str, body: Any = None) -> Any:
        """Call an endpoint that only servers started for training have."""
        try:
            return await self._wire.call(member.address, path, body)
        except BadRequest as error:
            raise ConfigError(f"{error}; {_HOW}") from error


def make_engine(
    settings: ServerSettings, model: Any, *, pad_id: int, max_tokens: int, dtype: str | None
) -> VLLMServerEngine:
    """The engine for settings, with their servers or a local server that it starts."""
    several = distributed.is_available() and distributed.is_initialized()
    directory = directory_of(settings.servers, "vllm")
    adapters = sends_adapters(settings, model)
    if directory is not None:
        members = [Member(address) for address in directory.await_addresses()]
    elif settings.servers:
        members = [Member(address.rstrip("/")) for address in settings.servers]
    elif several and distributed.get_world_size() > 1:
        raise ConfigError(
            f"{distributed.get_world_size()} processes need shared vLLM servers; start servers and "
            "set engine: {type: vllm, servers: [http://host:8000]} (docs/engines.md)"
        )
    else:
        from agentgym_train.engines.vllm.process import launch_for

        local = launch_for(model, settings, max_tokens=max_tokens, adapters=adapters)
        members = [Member(local.address, local)]
    return VLLMServerEngine(
        members,
        settings,
        max_tokens=max_tokens,
        gathered=gathered,
        is_first=not several or distributed.get_rank() == 0,
        api_key=(lambda: directory.token) if directory else None,
        directory=directory,
        adapters=adapters,
    )
