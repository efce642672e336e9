"""Does a policy learn it? Makes a warm policy, trains from it, and shows the same run at rate 0.

    python examples/gymnasium/learn.py frozen_lake --seeds 3

What is done is not done again; `key=value` words change values of the world's YAML file.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LEARNING = HERE.parent / "learning"
WARM_STARTS = {
    "blackjack": "--env blackjack:Blackjack --turns 8 --read 0 --wander 200 --careless 1",
    "frozen_lake": "--env frozen_lake:FrozenLake --turns 20 --read 40 --wander 60",
    "taxi": "--env taxi:Taxi --turns 25 --read 300 --wander 60 --careless 0.15",
}


def main() -> int:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("world", choices=WARM_STARTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="default: runs/gymnasium/WORLD")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_intermixed_args()
    out = args.out or Path("runs/gymnasium") / args.world
    warm = out / "warm_policy"
    if not (warm / "warm_start.json").exists():
        run("warm_start.py", "--out", str(warm), *WARM_STARTS[args.world].split())
    config = str(HERE / f"{args.world}.yaml")
    return run(
        "compare.py", "--config", config, "--model", str(warm), "--algorithms", "grpo",
        "--seeds", str(args.seeds), "--out", str(out / "runs"), *args.overrides,
    )  # fmt: skip


def run(script: str, *arguments: str) -> int:
    """One of the scripts next door, which finds the worlds here."""
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, str(LEARNING / script), *arguments], env=environment, check=False
    )
    if done.returncode:
        sys.exit(done.returncode)
    return 0


sys.exit(main())
