"""Asks Ray where a fleet's controller is, in a process of its own: `python -m ... NAME`.

A program that is connected to Ray ends when the cluster's head does, which no trainer should.
"""

from __future__ import annotations

import json
import sys

from agentgym_env.errors import AgentGymError


def main() -> None:
    """Print (address, token) as JSON, or the reason why there is none as {"error": ...}."""
    try:
        from agentgym_servers.fleet.ray_cluster import ask, connected, controller_of

        with connected():
            found = ask(controller_of(sys.argv[1]), "endpoint")
    except AgentGymError as error:
        found = {"error": str(error)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
