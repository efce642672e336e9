"""One of two processes that share a sharded model and sample from it unequally often."""

from __future__ import annotations

import sys
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from agentgym_train.models.distributed import GatheredModel, gathered, join
from tests.train.small import tiny_model

state = join(2, wait_s=60)
mesh = init_device_mesh("cpu", (2,))
ids = torch.arange(3, 24)[None]  # (1, 21)


def with_adapter() -> Any:
    """A model with LoRA adapters that change its output."""
    torch.manual_seed(2)
    return get_peft_model(
        tiny_model(seed=1), LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    )


for make in (lambda: tiny_model(seed=1), with_adapter):
    plain, sharded = make(), make()
    assert GatheredModel().gather(plain) is plain, "what is whole already is not copied"
    base = sharded.get_base_model() if hasattr(sharded, "peft_config") else sharded
    for layer in base.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    trained_weights = [[w for w in m.parameters() if w.requires_grad] for m in (sharded, plain)]
    optimizer, reference = (torch.optim.SGD(weights, 0.5) for weights in trained_weights)
    whole = GatheredModel()
    outputs = []
    for step in range(2):
        model = whole.gather(sharded)
        with torch.inference_mode():
            expected = plain(ids).logits
            # Were this a collective call, the process with fewer of them would never return.
            for _ in range(1 + 7 * (state.process_index ^ step)):
                assert torch.allclose(model(ids).logits, expected, atol=1e-5)
        outputs.append(expected)
        assert gathered(state.process_index) == [0, 1]
        for trained, steps in ((sharded, optimizer), (plain, reference)):
            trained(ids, labels=ids).loss.backward()
            steps.step()
            steps.zero_grad()
    assert not torch.allclose(*outputs, atol=1e-3), "the weights have changed"
sys.stdout.write(f"rank {state.process_index} is done\n")
