"""Advantage estimators, one file each, found by name or as `package.module:Class`."""

from __future__ import annotations

import importlib
from dataclasses import fields, is_dataclass
from typing import Any

from agentgym_env.errors import BadRequest
from agentgym_train.algorithms.base import Algorithm, TokenBatch
from agentgym_train.algorithms.grpo import GRPO

__all__ = ["GRPO", "Algorithm", "TokenBatch", "make_algorithm"]

_NAMED = {"grpo": GRPO}


def make_algorithm(name: str, values: dict[str, Any]) -> Algorithm:
    """An algorithm with its hyper-parameters; raises `BadRequest` naming what there is."""
    kind = _NAMED.get(name) or _imported(name)
    known = [f.name for f in fields(kind)] if is_dataclass(kind) else []
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise BadRequest(
            f"{name} has no {', '.join(unknown)}; it has {', '.join(known) or 'no fields'}"
        )
    algorithm: Algorithm = kind(**values)
    return algorithm


def _imported(name: str) -> Any:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise BadRequest(
            f"no algorithm {name!r}; there are {', '.join(_NAMED)}, or write package.module:Class"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BadRequest(f"cannot import the algorithm {name!r}: {error}") from error
