"""What `benchmarks/prefix_reuse.py` counts of real vLLM, next to what its model computes."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.train.small import tiny_model
from tests.train.test_prefix_reuse import AGAIN, ONE, measured

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed here; `make setup-vllm`", allow_module_level=True)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("default"),  # vLLM's own are many
]


@pytest.mark.parametrize("keeps", [False, True])
def test_what_vllm_tells_is_what_goes_through_its_model(keeps, monkeypatch):
    seen = []

    class Both(measured.VLLMCount):
        """Counts at the embedding of vLLM's model, too."""

        def __init__(self, engine):
            super().__init__(engine)
            core = engine._inner.engine_core.engine_core
            worker = core.model_executor.driver_worker.worker
            embedding = worker.model_runner.model.model.embed_tokens
            embedding.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))

    monkeypatch.setattr(measured, "VLLMCount", Both)
    held = measured.on_vllm(tiny_model(), ONE, keeps=keeps)
    first_call = 100 + 1  # before the counting begins
    assert sum(seen) - first_call == held.computed
    # Whole blocks of 32: three of the first turn's prompt, four of what comes before the third.
    assert held.computed == AGAIN - ((3 + 4) * 32 if keeps else 0)
    assert held.sampled == measured.on_transformers(tiny_model(), ONE, keeps=keeps).sampled
