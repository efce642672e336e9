"""Figures of the code base: files, lines and import cycles per package, now or at another commit.

python tools/house.py             # the working tree
python tools/house.py f6948e9     # a commit, and beside it the working tree
python tools/house.py --changes   # the files of each typical change in CONTRIBUTING.md
python tools/house.py --step      # the files of the trainer that one RL step uses; needs torch
python tools/house.py --eval      # the files of all packages that a local evaluation loads

median and max are lines of a file, top the modules and packages directly in the package, cycles the
modules that no order of imports allows; an import within a function counts, and so does a module's
name in a text.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "agentgym_env": "agentgym_env",
    "agentgym_train": "agentgym_train",
    "agentgym_servers": "servers/agentgym_servers",
    "agentgym_adapters": "adapters/agentgym_adapters",
    "agentgym_gateway": "servers/agentgym_gateway",
    "agentgym_viewer": "servers/agentgym_viewer",
    "tests": "tests",
}


@dataclass(frozen=True)
class Figures:
    """Figures of one package."""

    files: int
    lines: int
    median: int
    longest: int
    top: int
    """Modules and packages directly in it."""
    cycles: int
    """Modules that are in or behind a circle of imports."""


def main() -> None:
    """Print a table for each package."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", nargs="?", help="a commit to compare with")
    parser.add_argument("--changes", action="store_true", help="files per typical change")
    parser.add_argument("--step", action="store_true", help="trainer files that one RL step uses")
    parser.add_argument("--eval", action="store_true", help="files that a local evaluation loads")
    arguments = parser.parse_args()
    if arguments.changes:
        for change, files in typical_changes().items():
            print(f"{len(files)} {change}: {', '.join(files)}")
        return
    if arguments.step:
        files = step_files()
        print("\n".join(files), f"{len(files)} files of agentgym_train per RL step", sep="\n")
        return
    if arguments.eval:
        files = eval_files()
        print("\n".join(files), f"{len(files)} files in a local evaluation", sep="\n")
        return
    commit = arguments.commit
    sources = [("working tree", working_tree())]
    if commit is not None:
        if git("rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}", check=False) == "":
            parser.error(f"{commit} is not a commit of this repository")
        sources.insert(0, (commit, at_commit(commit)))
    print(
        f"{'package':<20}{'':<14}{'files':>7}{'lines':>8}{'median':>8}{'max':>6}{'top':>5}{'cycles':>8}"
    )
    for package, folder in PACKAGES.items():
        for name, texts in sources:
            f = figures(package, folder, texts)
            print(
                f"{package:<20}{name:<14}{f.files:>7}{f.lines:>8,}{f.median:>8}{f.longest:>6}"
                f"{f.top:>5}{f.cycles:>8}"
            )


def typical_changes() -> dict[str, list[str]]:
    """Change -> its files, as CONTRIBUTING.md lists them. Raises for a file that is missing."""
    found: dict[str, list[str]] = {}
    lines = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()
    start = lines.index("## Twelve typical changes")
    for line in lines[start:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        files = re.findall(r"`([^`]+)`", cells[-1]) if len(cells) == 2 else []
        if files:
            found[cells[0]] = files
            for file in files:
                if not (ROOT / file).is_file():
                    raise FileNotFoundError(f"CONTRIBUTING.md names {file}")
    return found


def step_files() -> list[str]:
    """The files of the trainer with a function that one step of RL on TextCraft calls."""
    from agentgym_train import AgentTrainer
    from agentgym_train.config.read import read_config
    from agentgym_train.training.rl import RLTrainer

    package = f"{ROOT / 'agentgym_train'}/"
    called: set[str] = set()
    in_step = False

    def note(frame: FrameType, event: str, _: object) -> None:
        if in_step and event == "call":
            called.add(frame.f_code.co_filename)

    step = RLTrainer.training_step

    def noted(trainer: RLTrainer, *arguments: object, **options: object) -> object:
        nonlocal in_step
        in_step = True
        try:
            return step(trainer, *arguments, **options)
        finally:
            in_step = False

    RLTrainer.training_step = noted  # type: ignore[method-assign,assignment]
    # Episodes are played in threads of their own.
    threading.setprofile(note)
    sys.setprofile(note)
    with tempfile.TemporaryDirectory() as folder:
        words = ["steps=1", "prompts_per_step=2", "num_generations=2", "minibatches_per_rollout=1"]
        words += ["eval.before=false", "eval.after=false", f"output_dir={folder}/run"]
        example = ROOT / "examples" / "train" / "textcraft" / "rl.yaml"
        with AgentTrainer(args=read_config(example, words)) as trainer:
            trainer.train()
    return sorted(file.removeprefix(package) for file in called if file.startswith(package))


def eval_files() -> list[str]:
    """The files of our packages whose code runs when `agentgym eval` plays a model on TextCraft.

    Those of this process: the environment's server is another one.
    """
    from agentgym_env.cli.main import main as agentgym

    with tempfile.TemporaryDirectory() as folder:
        words = ["--env", "textcraft", "--policy", "starter:textcraft/warm_policy", "--limit", "1"]
        words += ["--horizon", "2", "--turn-max-tokens", "8", "--out", f"{folder}/eval"]
        try:
            agentgym(["eval", *words])
        except SystemExit as end:
            if end.code:
                raise
    if not Path(inspect.getfile(agentgym)).is_relative_to(ROOT):
        raise FileNotFoundError("the installed packages are not those of this repository")
    own = tuple(f"{ROOT / folder}/" for package, folder in PACKAGES.items() if package != "tests")
    loaded = {getattr(module, "__file__", None) or "" for module in sys.modules.values()}
    return sorted(file.removeprefix(f"{ROOT}/") for file in loaded if file.startswith(own))


def working_tree() -> dict[str, str]:
    """Path -> text of every Python file that git knows or could know."""
    listed = git("ls-files", "--cached", "--others", "--exclude-standard", "*.py").splitlines()
    return {p: (ROOT / p).read_text(encoding="utf-8") for p in listed if (ROOT / p).is_file()}


def at_commit(commit: str) -> dict[str, str]:
    """Path -> text of every Python file of a commit."""
    listed = git("ls-tree", "-r", "--name-only", commit).splitlines()
    return {p: git("show", f"{commit}:{p}") for p in listed if p.endswith(".py")}


def figures(package: str, folder: str, texts: Mapping[str, str]) -> Figures:
    """Figures of the files below a folder."""
    own = {p: text for p, text in texts.items() if p.startswith(f"{folder}/")}
    lengths = [len(text.splitlines()) for text in own.values()]
    top = {Path(p).relative_to(folder).parts[0] for p in own}
    modules = {module_name(package, folder, p): text for p, text in own.items()}
    return Figures(
        len(own),
        sum(lengths),
        round(statistics.median(lengths or [0])),
        max(lengths, default=0),
        len(top),
        0 if package == "tests" else in_circles(modules),
    )


def module_name(package: str, folder: str, path: str) -> str:
    """The dotted name of a file."""
    parts = (package, *Path(path).relative_to(folder).with_suffix("").parts)
    return ".".join(part for part in parts if part != "__init__")


def in_circles(modules: Mapping[str, str]) -> int:
    """How many modules cannot be put in an order of imports."""
    edges = {name: imported(text, modules) - {name} for name, text in modules.items()}
    while free := [name for name, needs in edges.items() if not needs]:
        for name in free:
            del edges[name]
        for needs in edges.values():
            needs.difference_update(free)
    return len(edges)


def imported(text: str, modules: Mapping[str, str]) -> set[str]:
    """The modules of the same package that a file imports, or names in a text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value.partition(":")[0])
    names = found & set(modules)
    # A package is not imported for its own sake where a module of it is named.
    return {n for n in names if not any(other.startswith(f"{n}.") for other in names)}


def git(*words: str, check: bool = True) -> str:
    """The output of a git command."""
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=check
    ).stdout


if __name__ == "__main__":
    main()
