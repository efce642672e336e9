"""All GPU checks, one after another, and one file with what they found.

    python benchmarks/gpu/run_all.py --out runs/gpu

Each takes less than nine minutes. A check that fails does not stop the others. `--only` names some.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

CHECKS = (
    "update_throughput", "engine_throughput", "quickstart", "smollm2", "passes", "weight_updates",
    "nccl", "memory",
)  # fmt: skip
"""In the order of what they tell."""


def main() -> int:
    """Run them; 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--only", help=f"names from {', '.join(CHECKS)}, separated by commas")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to test them on a CPU")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(CHECKS)
    if unknown := set(names) - set(CHECKS):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(CHECKS)}")
    failed = []
    for name in names:
        # A file of an earlier run must not stand for one that fails now.
        (args.out / f"{name}.json").unlink(missing_ok=True)
        script = Path(__file__).with_name(f"{name}.py")
        words = [sys.executable, str(script), "--out", str(args.out)]
        if subprocess.run([*words, *(["--tiny"] if args.tiny else [])], check=False).returncode:
            failed.append(name)
    files = [args.out / f"{name}.json" for name in CHECKS]
    found = {file.stem: json.loads(file.read_text()) for file in files if file.is_file()}
    found["failed"] = failed
    (args.out / "all.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{args.out / 'all.json'}: failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
