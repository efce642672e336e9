"""The `agentgym` command: `main` runs it, and each command of this package has its own module."""

from agentgym_env.cli.main import main

__all__ = ["main"]
