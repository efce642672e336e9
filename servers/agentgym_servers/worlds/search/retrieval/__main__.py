"""`python -m agentgym_servers.worlds.search.retrieval`: `agentgym index` and `serve-retriever`."""

from __future__ import annotations

import sys

import typer

from agentgym_env.errors import AgentGymError
from agentgym_servers.worlds.search.retrieval.build import index
from agentgym_servers.worlds.search.retrieval.search_app import serve_retriever


def main() -> None:
    """Run the command; an expected failure is one line on stderr."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command("index")(index)
    app.command("serve-retriever")(serve_retriever)
    try:
        app()
    except AgentGymError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
