"""`accelerate launch -m agentgym_train CONFIG.yaml`: `agentgym train` for launchers of modules."""

from __future__ import annotations

import sys

from agentgym_env.cli import main
from agentgym_train.runs.launch import drop_safe_path

if __name__ == "__main__":
    drop_safe_path()
    main(["train", *sys.argv[1:]])
