"""Trains language models on text environments by multi-turn RL, on TRL and Accelerate.

Importing this package is light: torch is loaded when a name that needs it is first used.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from agentgym_train.algorithms import Algorithm, TokenBatch
    from agentgym_train.config.learn import AgentEvolConfig, DPOConfig, SFTConfig
    from agentgym_train.config.policy import CollectConfig, PolicyConfig
    from agentgym_train.config.rl import RLConfig
    from agentgym_train.data.collect import collect
    from agentgym_train.evaluation.report import EvalReport
    from agentgym_train.rollout.agent import Agent
    from agentgym_train.rollout.horizon import Horizon
    from agentgym_train.rollout.policy import Policy
    from agentgym_train.runs.agent_trainer import AgentTrainer
    from agentgym_train.training.trl_rollout import TrlRollout

__all__ = [
    "Agent",
    "AgentEvolConfig",
    "AgentTrainer",
    "Algorithm",
    "CollectConfig",
    "DPOConfig",
    "EvalReport",
    "Horizon",
    "Policy",
    "PolicyConfig",
    "RLConfig",
    "SFTConfig",
    "TokenBatch",
    "TrlRollout",
    "collect",
]

_MODULES: Final = {
    "Agent": "rollout.agent",
    "AgentEvolConfig": "config.learn",
    "AgentTrainer": "runs.agent_trainer",
    "Algorithm": "algorithms",
    "CollectConfig": "config.policy",
    "DPOConfig": "config.learn",
    "EvalReport": "evaluation.report",
    "Horizon": "rollout.horizon",
    "Policy": "rollout.policy",
    "PolicyConfig": "config.policy",
    "RLConfig": "config.rl",
    "SFTConfig": "config.learn",
    "TokenBatch": "algorithms",
    "TrlRollout": "training.trl_rollout",
    "collect": "data.collect",
}
"""Where each public name is defined."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with warnings.catch_warnings():
        # Our own bars need no widgets, and those of the libraries are off.
        warnings.filterwarnings("ignore", message="IProgress not found")
        module = import_module(f"{__name__}.{_MODULES[name]}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
