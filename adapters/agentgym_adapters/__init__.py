"""Bridges to other frameworks, one file each.

verifiers finds an environment as a package: `agentgym-adapters` is this one. What it looks for
here is imported when it is asked for.
"""

from importlib import import_module
from typing import Any

__all__ = ["AgentGymEnv", "AgentGymTaskset", "TurnHarness", "load_environment"]


def __getattr__(name: str) -> Any:
    """The names that verifiers' loaders look up: classes in v1, a function in v0."""
    if name == "load_environment":
        try:
            return import_module("agentgym_adapters.verifiers_v0").load_environment
        except ImportError as error:
            # verifiers looks whether there is one, also where it has no v0 itself.
            raise AttributeError(str(error)) from error
    if name in __all__:
        return getattr(import_module("agentgym_adapters.verifiers_v1"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
