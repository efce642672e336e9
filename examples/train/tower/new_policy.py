"""Make an untrained policy for the tower: a tiny Qwen3 model, and a tokenizer of its words.

python examples/train/tower/new_policy.py --data runs/tower-demos --out runs/tower-new
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agentgym_train.data.datasets import read_demonstrations
from agentgym_train.models.loading import quiet_libraries

sys.path.insert(0, str(Path(__file__).parents[3]))
from examples.learning.warm_start import new_model, texts
from examples.small_models import small_tokenizer


def main() -> None:
    """Save the model and its tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of collected episodes")
    parser.add_argument("--out", type=Path, required=True, help="folder of the policy")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    quiet_libraries()
    episodes = read_demonstrations([args.data])[0].selected
    tokenizer = small_tokenizer(texts(iter(episodes)), vocab_size=512)
    new_model(tokenizer, args.seed).save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
