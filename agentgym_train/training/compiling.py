"""Compiles the training passes of a model with torch.compile, layer by layer."""

from __future__ import annotations

import os
import shutil
from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer

from agentgym_env.errors import ConfigError


def compile_layers(model: Any) -> None:
    """Compile each transformer layer in place.

    Layers of one kind share their code, so that this takes a minute instead of many. The names of
    the weights stay. The hf engine samples without compiled code. Raises `ConfigError` without
    such layers or, on a CPU, a C++ compiler.
    """
    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"torch_compile: {type(model).__name__} has no layers of transformers' kind; leave it "
            "out"
        )
    if next(model.parameters()).device.type == "cpu":
        named = (os.environ.get("CXX"), "g++", "clang++")
        if not any(name and shutil.which(name) for name in named):
            raise ConfigError(
                "torch_compile: a CPU needs a C++ compiler; install g++, or leave it out"
            )
    for layer in layers:
        layer.compile(dynamic=True)
