"""Sends weights from the trainer's GPU to vLLM's GPUs with vLLM's weight transfer over NCCL.

Written against the sources of vLLM 0.28 to 0.31. Untested: it needs several GPUs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from agentgym_env.errors import MissingExtra
from agentgym_train.engines.base import EngineLost
from agentgym_train.engines.vllm.transports import WeightTransport
from agentgym_train.engines.vllm.wire import Member, VLLMWire
from agentgym_train.models.weights import checkpoint_weights

try:
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
    from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
    from vllm.distributed.weight_transfer.nccl_engine import (
        NCCLTrainerInitInfo,
        NCCLTrainerWeightTransferEngine,
    )
except ImportError as error:
    raise MissingExtra(
        "transport: nccl needs vLLM 0.28 to 0.31 in the trainer's environment: pip install "
        "'agentgym-sdk[vllm]'; transport: file does not"
    ) from error


class NCCLTransport(WeightTransport):
    """Sends weights over one communicator per server, so that a restarted server joins alone."""

    def __init__(self, wire: VLLMWire, address: str, port: int) -> None:
        self._wire = wire
        self._address = address
        self._port = port
        self._source = _Source()
        self._senders: dict[str, Any] = {}
        self._one_at_a_time = asyncio.Lock()

    def publish(self, model: Any, label: str) -> None:
        """Keep a reference to the weights: the trainer changes them only between rollouts."""
        self._source.weights = checkpoint_weights(model)

    async def give(self, member: Member, label: str, *, is_new: bool) -> None:
        """Send the weights to a server; create the communicator first if the server is new."""
        if not self._source.weights:
            # Waiting here would deadlock: the gate blocks updates while turns wait.
            raise EngineLost(
                f"{member.address} was restarted, and over NCCL only the run's first process can "
                "send it the weights; it gets them at the next update, or use transport: file"
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
        """Shut down the communicators."""
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
    """The published weights in the interface of vLLM's sender."""

    weights: Mapping[str, Tensor] = {}

    def metadata(self) -> list[Any]:
        return [ParamMeta(name, w.dtype, tuple(w.shape)) for name, w in self.weights.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in self.weights.items():
            yield name, weight.cuda()
