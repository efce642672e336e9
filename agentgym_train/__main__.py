"""`accelerate launch -m agentgym_train CONFIG.yaml`: `agentgym train` for launchers of modules."""

from __future__ import annotations

import sys

from agentgym_env.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
