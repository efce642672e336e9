"""How new weights reach vLLM servers: by a file, or as LoRA adapters beside the base weights."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from agentgym_env.errors import ConfigError
from agentgym_train.config.engines import ServerSettings
from agentgym_train.engines.base import EngineLost
from agentgym_train.engines.vllm.wire import Broken, Member, VLLMWire
from agentgym_train.models.weights import TOKENS_WITH_ADAPTERS, adapters_of, checkpoint_weights


class WeightTransport:
    """Publishes a version of the weights once, and sends it to paused servers."""

    def publish(self, model: Any, label: str) -> None:
        """Publish `model`'s current weights; called on the run's first process only."""
        raise NotImplementedError

    async def give(self, member: Member, label: str, *, is_new: bool) -> None:
        """Make a server load the weights `label`; `is_new` if it had none of this run before."""
        raise NotImplementedError

    def close(self) -> None:
        """Free the published weights."""

    def weights(self, label: str) -> str:
        """The label of the weights that a server needs for the version `label`."""
        return label

    def name(self, member: Member, label: str | None) -> str:
        """The name of the model that is asked for the version `label`."""
        return member.model

    async def offers(self, member: Member, label: str) -> bool:
        """Whether a server with these weights can be asked for the version `label`."""
        return True

    async def offer(self, member: Member, label: str) -> None:
        """Make it so; the server is not paused."""


class FileTransport(WeightTransport):
    """Writes weights to a safetensors file that trainer and servers see under the same path.

    The file exists until the next version is published, so that any process of the run can send
    the current weights to a restarted server.
    """

    _OR = ""
    """What else may help."""

    def __init__(self, wire: VLLMWire, run: str, folder: str | None) -> None:
        self._wire = wire
        self._folder = Path(folder or tempfile.gettempdir()).absolute() / f"agentgym-weights-{run}"

    def publish(self, model: Any, label: str) -> None:
        """Write the file, then remove the previous one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(label)
        weights = checkpoint_weights(model)
        save_file({n: w.cpu().contiguous() for n, w in weights.items()}, path)
        for other in self._folder.glob("*.safetensors"):
            if other != path:
                other.unlink()

    async def give(self, member: Member, label: str, *, is_new: bool) -> None:
        """Make a server's workers load the file."""
        body = {"method": "read_weights", "args": [str(self._path(label))]}
        try:
            await self._wire.call(member.address, "/collective_rpc", body)
        except Broken as error:
            raise EngineLost(
                f"{member.address} cannot read the weights {self._path(label)}: {error}. It must "
                f"see that folder under the same path: set engine.weights_dir to a shared "
                f"folder{self._OR}"
            ) from error

    def _path(self, label: str) -> Path:
        return self._folder / f"{label}.safetensors"

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


class AdapterTransport(FileTransport):
    """Writes the base weights once, and then only the LoRA adapters of each version.

    Servers sample with base weights and adapters, so loading a version pauses nothing.
    """

    _OR = ", or engine.adapter_updates to false"

    def __init__(self, wire: VLLMWire, run: str, folder: str | None) -> None:
        super().__init__(wire, run, folder)
        self._run = run

    def publish(self, model: Any, label: str) -> None:
        """Write the adapters, at first the base weights too, and remove the previous adapters."""
        base = self._path(self.weights(label))
        if not base.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            weights = checkpoint_weights(model, with_adapters=False)
            save_file({n: w.cpu().contiguous() for n, w in weights.items()}, base)
        config, weights = adapters_of(model)
        folder = self._folder / label
        folder.mkdir()
        config.save_pretrained(folder)
        save_file(weights, folder / "adapter_model.safetensors")
        for other in self._folder.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other)

    def weights(self, label: str) -> str:
        """The base weights, whatever the version."""
        return f"{self._run}-base"

    def name(self, member: Member, label: str | None) -> str:
        """The adapters' name is the label."""
        return label or member.model

    async def offers(self, member: Member, label: str) -> bool:
        """Whether the server has the adapters."""
        return label in await self._loaded(member)

    async def offer(self, member: Member, label: str) -> None:
        """Load the adapters, and unload those of earlier versions."""
        body = {"lora_name": label, "lora_path": str(self._folder / label)}
        try:
            await self._wire.call(member.address, "/v1/load_lora_adapter", body)
        except (Broken, ConfigError) as error:
            raise EngineLost(
                f"{member.address} cannot load LoRA adapters: {error}. Start it with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and --max-lora-rank, so that it "
                "sees the folder of the adapters, or set engine.adapter_updates to false"
            ) from error
        for name in await self._loaded(member):
            if name.startswith(f"{self._run}-") and name != label:
                body = {"lora_name": name}
                await self._wire.call(member.address, "/v1/unload_lora_adapter", body)

    async def _loaded(self, member: Member) -> list[str]:
        found = await self._wire.call(member.address, "/v1/models")
        return [card["id"] for card in found["data"]]


def sends_adapters(settings: ServerSettings, model: Any) -> bool:
    """Whether only adapters are sent; raises `ConfigError` if they cannot be."""
    wanted = settings.adapter_updates
    if not hasattr(model, "peft_config") or wanted is False:
        return False
    trains_tokens = any(c.trainable_token_indices for c in model.peft_config.values())
    if wanted is None:
        # Other servers may not take adapters, and on a CPU they slow sampling down.
        is_ours = settings.transport == "file" and not settings.servers
        return is_ours and torch.cuda.is_available() and not trains_tokens
    if settings.transport != "file":
        raise ConfigError("adapter_updates needs transport: file")
    if trains_tokens:
        raise ConfigError(TOKENS_WITH_ADAPTERS)
    return True
