"""Writes the file of a corpus, for `agentgym_servers.worlds.search`.

    python -m tools.generated_world synthetic:0 timezones --out FOLDER
    python -m tools.generated_world "synthetic:7?hops=3-4&distractors=2" --out FOLDER

Needs the extra `search`. The same line gives the same file on every machine.
"""

from __future__ import annotations

import argparse
import lzma
import re
from pathlib import Path

from agentgym_servers.worlds.search.corpora import SearchWorld, encoded
from tools.generated_world import generate, timezones
from tools.generated_world.facts import WorldSpec, unfold
from tools.generated_world.searches import with_searches


def make(corpus: str) -> SearchWorld:
    """The world of a corpus with the expert's searches: `timezones`, or a `WorldSpec` as a line."""
    if corpus == timezones.NAME:
        facts = timezones.zone_facts(timezones.read_table())
        return with_searches(timezones.timezones(), facts, timezones.LANGUAGE)
    spec = WorldSpec.parse(corpus)
    return with_searches(generate.generate(spec), unfold(spec), generate.LANGUAGE)


def main() -> None:
    """Write one file for each corpus, and print its path."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpora", nargs="+", metavar="CORPUS")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for corpus in options.corpora:
        world = make(corpus)
        path = options.out / f"{re.sub(r'[^a-z0-9.]+', '-', world.name)}.jsonl.xz"
        path.write_bytes(lzma.compress(encoded(world), preset=9 | lzma.PRESET_EXTREME))
        print(path)


if __name__ == "__main__":
    main()
