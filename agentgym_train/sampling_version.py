"""The version of the sampling code, which records of results name."""

from __future__ import annotations

from typing import Final

SAMPLING: Final = 2
"""Raise it when a seed gives other sampled episodes than before. Records in `results/` name it.

1: tokens are drawn by the inverse of the cumulative distribution.
2: tokens are drawn by the Gumbel-max trick (`agentgym_train/engines/hf/choice.py`).
"""
