"""Worker extension for vLLM that replaces weights in place.

A server loads it with `--worker-extension-cls agentgym_train.engines.vllm.worker.WeightReader`.
Importing this module makes the weights of a CPU build updatable. It must be imported before a model
is loaded, which vLLM does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from agentgym_env.errors import MissingExtra

try:
    from vllm.model_executor.layers import utils as vllm_layers
    from vllm.platforms import current_platform
except ModuleNotFoundError as error:
    raise MissingExtra(
        "this engine needs vLLM: pip install 'agentgym-sdk[vllm]' on a machine with GPUs; for a "
        "CPU see docs/engines.md"
    ) from error


class WeightReader:
    """Methods that vLLM adds to its worker; `self.model_runner` is the worker's."""

    model_runner: Any

    def read_weights(self, path: str) -> int:
        """Load the weights of a safetensors file and return their number."""
        return self.take_weights(load_file(path))

    def take_weights(self, weights: Mapping[str, Tensor]) -> int:
        """Load weights with the names of a checkpoint and return their number."""
        with torch.no_grad():
            self.model_runner.model.load_weights(iter(weights.items()))
        return len(weights)


def _plain_linear(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


if current_platform.is_cpu():
    # vLLM packs a linear layer's weight for the CPU and drops the original, so new weights cannot
    # be loaded; its own reload packs again but does not update tied weights.
    vllm_layers.dispatch_cpu_unquantized_gemm = _plain_linear
