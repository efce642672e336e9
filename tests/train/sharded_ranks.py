"""One of two processes that share a sharded model and sample from it unequally often."""

from __future__ import annotations

import sys

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from agentgym_train.models.distributed import GatheredModel, gathered, join
from tests.train.small import tiny_model

state = join(2, wait_s=60)
plain, sharded = tiny_model(seed=1), tiny_model(seed=1)
assert GatheredModel().of(plain) is plain, "what is whole already is not copied"
mesh = init_device_mesh("cpu", (2,))
for layer in sharded.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(sharded, mesh=mesh)
optimizer, reference = (torch.optim.SGD(m.parameters(), 0.5) for m in (sharded, plain))
whole = GatheredModel()
ids = torch.arange(3, 24)[None]  # (1, 21)
for step in range(2):
    model = whole.of(sharded)
    with torch.inference_mode():
        expected = plain(ids).logits
        # Were this a collective call, the process with fewer of them would be waited for for ever.
        for _ in range(1 + 7 * (state.process_index ^ step)):
            assert torch.allclose(model(ids).logits, expected, atol=1e-5)
    assert gathered(state.process_index) == [0, 1]
    for trained, steps in ((sharded, optimizer), (plain, reference)):
        trained(ids, labels=ids).loss.backward()
        steps.step()
        steps.zero_grad()
sys.stdout.write(f"rank {state.process_index} is done\n")
