"""`agentgym new`: creates a package with one environment, as a starting point."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from keyword import iskeyword
from os.path import lexists
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer
from rich.console import Console

from agentgym_env.errors import BadRequest

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_. ][A-Za-z0-9]+)*")
"""Names that are valid for a module, a class, a distribution and an environment id."""
_MAX_LENGTH: Final = 50

_PYPROJECT: Final = Template("""\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "$project"
version = "0.1.0"
description = "$title, a text environment for LLM agents."
requires-python = ">=3.11"
dependencies = ["agentgym-sdk"]

[project.optional-dependencies]
test = ["pytest>=8"]
train = ["agentgym-sdk[train]"]

# After `pip install -e .` every command of agentgym knows the environment by this id.
[project.entry-points."agentgym.environments"]
"$env_id" = "$module:$title"

[tool.hatch.build.targets.wheel]
# Put data files into this folder and read them by Path(__file__).with_name("${module}_data").
include = ["$module.py", "${module}_data"]
""")

_ENVIRONMENT: Final = Template('''\
"""$title: find a hidden number by higher and lower. Replace the game with your own."""

from collections.abc import Iterator

from agentgym_env import TaskSet, TextEnv


class $title(TextEnv):
    """Guess a number from 1 to 30. Reward: 1 for the right guess, which ends the episode."""

    instruction = "Find the hidden number from 1 to 30. Each turn, answer with one number."
    tasks = TaskSet({
        "train": [f"game-{i}" for i in range(80)],
        "test": [f"game-{i}" for i in range(80, 100)],
    })

    def _reset(self, task: str) -> str:
        # self.rng is seeded with the episode's seed and task: use it for all randomness.
        self.number = 1 + int(self.rng.random() * 30)
        self.low, self.high = 1, 30
        return "I have a number from 1 to 30 in mind."

    def _step(self, action: str) -> tuple[str, float, bool]:
        guess = action.strip()
        # Answer every text of a policy with an observation; an action never raises.
        if not (guess.isascii() and guess.isdigit() and len(guess) <= 3):
            return "Answer with one number from 1 to 30.", 0.0, False
        if int(guess) == self.number:
            return f"Yes, it is {self.number}!", 1.0, True
        if int(guess) < self.number:
            self.low = max(self.low, int(guess) + 1)
            return f"It is higher than {int(guess)}.", 0.0, False
        self.high = min(self.high, int(guess) - 1)
        return f"It is lower than {int(guess)}.", 0.0, False

    def available_actions(self) -> list[str]:
        """Every number; the observations tell which are still possible."""
        return [str(number) for number in range(1, 31)]

    def expert(self) -> Iterator[str]:
        """Halve the remaining range: the proof that every task can be solved."""
        while True:
            yield str((self.low + self.high) // 2)
''')

_TEST: Final = Template('''\
"""What holds for any game. Keep these tests when you replace the game, and add your own."""

import agentgym_env  # registers the environments
import gymnasium as gym
import pytest
from agentgym_env.conformance import check_environment
from $module import $title


def test_it_passes_the_conformance_checks():
    failed = [result for result in check_environment("$module:$title") if not result.passed]
    assert not failed


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_expert_solves_every_task(split):
    env = $title()
    for task in env.tasks.split(split):
        env.reset(seed=0, options={"task": task})
        ended = False
        while not ended and (action := env.expert_action()) is not None:
            observation, reward, ended, _, info = env.step(action)
        assert ended and info["success"], f"{task} ends with {observation!r}"


def test_gymnasium_makes_it():
    env = gym.make("$env_id", server="inprocess")
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert env.unwrapped.available_actions()
    env.close()
''')

_SFT: Final = Template("""\
# A small policy of a million parameters imitates the expert's episodes, on a CPU.
#   agentgym collect --env $env_id --policy expert --n 200 --out runs/expert
#   agentgym train sft.yaml
method: sft
env: $env_id
model: starter:textcraft/warm_policy   # or a model id of the hub
data: [runs/expert]
output_dir: runs/sft

turn_max_tokens: 16
max_tokens: 1024

rows_per_step: 16
epochs: 4
learning_rate: 1.0e-3
trainer_args: {warmup_steps: 5}

# Success before and after, on the tasks of the test split.
eval: {split: test, horizon: 8, samples: 4}
""")

_RL: Final = Template("""\
# RL continues from what SFT has learned; the horizon grows in stages.
#   agentgym train rl.yaml
method: rl
env: $env_id
model: runs/sft/model
output_dir: runs/rl

horizon: {type: stepwise, turns: [6, 8], every: 10}
turn_max_tokens: 16
max_tokens: 1024

algorithm: grpo
prompts_per_step: 16
num_generations: 4
steps: 25
save_every: 5
learning_rate: 2.0e-4
trainer_args: {lr_scheduler_type: linear, warmup_steps: 3}

# Success before and after, on the tasks of the test split, at one fixed horizon.
eval: {split: test, horizon: 8, samples: 4}
""")


def new(
    name: Annotated[str, typer.Argument(help="Name of the package, such as my-maze.")],
    folder: Annotated[
        Path | None, typer.Option(help="Folder to write to. Default: a new folder with that name.")
    ] = None,
) -> None:
    """Create a package with a new environment.

    Writes the environment, its tests, a pyproject.toml, and configs that train a small policy.
    """
    env_id, paths = write_package(name, Path(name) if folder is None else folder)
    console = Console(highlight=False, markup=False)
    for path in paths:
        console.print(f"created {path}", soft_wrap=True)
    written = shlex.quote(str(paths[0].parent))
    with_tests = shlex.quote(f"{paths[0].parent}[test]")
    console.print(
        f"\nNext steps:\n  pip install -e {with_tests}\n  agentgym check {env_id}\n"
        f"  agentgym play {env_id}\n  pytest {written}\n\n"
        f"Train a small policy on it:\n  cd {written}\n"
        f"  agentgym collect --env {env_id} --policy expert --n 200 --out runs/expert\n"
        "  agentgym train sft.yaml\n  agentgym train rl.yaml",
        soft_wrap=True,
    )


def write_package(name: str, folder: Path) -> tuple[str, list[Path]]:
    """Write the package's files into `folder`; return the environment's id and the paths.

    Raises `BadRequest` for an invalid name, a folder that cannot be created, and if a file exists
    already.
    """
    if not _NAME.fullmatch(name) or len(name) > _MAX_LENGTH:
        raise BadRequest(
            f"{name[:100]!r} is not a valid package name; use at most {_MAX_LENGTH} letters and "
            "digits in words separated by single dashes, such as my-maze"
        )
    module = re.sub(r"[-. ]", "_", name).lower()
    if module in sys.stdlib_module_names or module.startswith("agentgym") or find_spec(module):
        raise BadRequest(f"{name!r} is the name of an existing module; choose another")
    title = "".join(word.capitalize() for word in module.split("_"))
    if iskeyword(module) or iskeyword(title):
        raise BadRequest(f"{name!r} is a keyword of Python; choose another name")
    project = module.replace("_", "-")
    with suppress(PackageNotFoundError):
        version(project)
        raise BadRequest(f"{project!r} is the name of an installed package; choose another")
    words = {
        "module": module, "title": title, "project": project, "env_id": f"{project}/{title}-v0",
    }  # fmt: skip
    files = {
        folder / "pyproject.toml": _PYPROJECT,
        folder / f"{module}.py": _ENVIRONMENT,
        folder / f"test_{module}.py": _TEST,
        folder / "sft.yaml": _SFT,
        folder / "rl.yaml": _RL,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        shown = str(folder)[:200]
        raise BadRequest(
            f"the folder {shown} cannot be created ({error.strerror}); choose another with --folder"
        ) from error
    for path in files:
        if lexists(path):  # a link whose target is missing exists too
            raise BadRequest(f"{path} exists already; move it or choose another name")
    for path, template in files.items():
        path.write_text(template.substitute(words), encoding="utf-8")
    return words["env_id"], list(files)
