"""Compiles the training passes of a model with torch.compile, layer by layer."""

from __future__ import annotations

import os
import shutil
from functools import cache
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer
from trl.kernels import chunked_logprob

from agentgym_env.errors import ConfigError


def compile_layers(model: Any) -> None:
    """Compile each transformer layer in place, and on a CPU the tiles of the LM head.

    Layers of one kind share their code, so that this takes a minute instead of many. The names of
    the weights stay. The hf engine samples without compiled code. Raises `ConfigError` without
    such layers or, on a CPU, a C++ compiler.
    """
    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"compile: {type(model).__name__} has no layers of transformers' kind; remove compile"
        )
    if next(model.parameters()).device.type == "cpu":
        named = (os.environ.get("CXX"), "g++", "clang++")
        if not any(name and shutil.which(name) for name in named):
            raise ConfigError("compile: a CPU needs a C++ compiler; install g++, or remove compile")
        _compile_tiles()
    for layer in layers:
        layer.compile(dynamic=True)


@cache
def _compile_tiles() -> None:
    """Compile what TRL computes of a tile of logits where it has no Triton kernel."""
    for name in ("_forward_tile", "_backward_tile"):
        made = torch.compile(getattr(chunked_logprob, name), dynamic=True)
        setattr(chunked_logprob, name, made)
