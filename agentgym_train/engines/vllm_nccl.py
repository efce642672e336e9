"""Sends weights from the trainer's GPU to vLLM's by vLLM's own weight transfer.

Written for vLLM 0.28 to 0.31 from their sources. It has not been run: it needs several GPUs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from agentgym_env.errors import MissingExtra
from agentgym_train.engines.base import EngineLost
from agentgym_train.engines.vllm_server import Member, VLLMWire
from agentgym_train.models.loading import checkpoint_weights

try:
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
    from vllm.distributed.weight_transfer.nccl_engine import (
        NCCLTrainerInitInfo,
        NCCLTrainerWeightTransferEngine,
    )
except ImportError as error:
    raise MissingExtra(
        "transport: nccl needs vLLM 0.28 to 0.31 beside the trainer: pip install "
        "'agentgym-sdk[vllm]'; transport: file needs none"
    ) from error


class NCCLTransport:
    """One communicator a server, so that one that was started again joins without the others."""

    def __init__(self, wire: VLLMWire, address: str, port: int) -> None:
        self._wire = wire
        self._address = address
        self._port = port
        self._source = _Source()
        self._senders: dict[str, Any] = {}
        self._one_at_a_time = asyncio.Lock()

    def publish(self, model: Any, label: str) -> None:
        """Keep the weights themselves: the trainer changes them only between rollouts."""
        self._source.weights = checkpoint_weights(model)

    async def give(self, member: Member, label: str, *, is_new: bool) -> None:
        """Send the weights to a server; to a new one after making the communicator with it."""
        if not self._source.weights:
            # The gate keeps updates out while turns wait, so to wait here would be for ever.
            raise EngineLost(
                f"{member.address} was started again, and by NCCL only the run's first process "
                "can give it the weights; it gets them at the next update, or use transport: file"
            )
        async with self._one_at_a_time:
            if is_new or member.address not in self._senders:
                path = "/get_world_size"
                workers = (await self._wire.call(member.address, path))["world_size"]
                self._senders[member.address] = await asyncio.to_thread(
                    self._connect, member.address, workers
                )
            await asyncio.to_thread(self._senders[member.address].send_weights)

    def close(self) -> None:
        """Let the communicators go."""
        for sender in self._senders.values():
            sender.shutdown()
        self._senders.clear()

    def _connect(self, address: str, workers: int) -> Any:
        self._port += 1
        info = NCCLTrainerInitInfo(
            master_address=self._address,
            master_port=self._port - 1,
            world_size=1 + workers,
            rank=0,
        )
        client = HTTPVLLMWeightSyncClient(address)
        return NCCLTrainerWeightTransferEngine.trainer_init(
            info, client=client, source=self._source
        )


class _Source(WeightSource):
    """The published weights as vLLM's sender reads them."""

    weights: Mapping[str, Tensor] = {}

    def metadata(self) -> list[Any]:
        return [ParamMeta(name, w.dtype, tuple(w.shape)) for name, w in self.weights.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self.weights.items():
            yield name, weight.cuda()
