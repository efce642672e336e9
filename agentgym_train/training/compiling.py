"""Compiles the training passes of a model with torch.compile, layer by layer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from typing import Any, Final

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
            f"torch_compile: {type(model).__name__} has no layers of transformers' kind; leave it "
            "out"
        )
    if next(model.parameters()).device.type == "cpu":
        named = (os.environ.get("CXX"), "g++", "clang++")
        if not any(name and shutil.which(name) for name in named):
            raise ConfigError(
                "torch_compile: a CPU needs a C++ compiler; install g++, or leave it out"
            )
        set_tiles(compiled=True)
    for layer in layers:
        layer.compile(dynamic=True)


_TILES: Final = {
    name: getattr(chunked_logprob, name) for name in ("_forward_tile", "_backward_tile")
}
"""What TRL computes of a tile of logits where it has no Triton kernel."""


def set_tiles(*, compiled: bool) -> None:
    """Let TRL use compiled functions for tiles of logits, or its own. Applies to the process."""
    for name, own in _TILES.items():
        setattr(chunked_logprob, name, _compiled(own) if compiled else own)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(function, dynamic=True)
    return made
