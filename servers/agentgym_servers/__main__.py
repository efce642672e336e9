"""`python -m agentgym_servers ID`: the same as `agentgym serve ID`."""

from __future__ import annotations

import sys

import typer

from agentgym_env.errors import AgentGymError
from agentgym_servers.cli import serve


def main() -> None:
    """Run the command; an expected failure is one line on stderr."""
    try:
        typer.run(serve)
    except AgentGymError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
