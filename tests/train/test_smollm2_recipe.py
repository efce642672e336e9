"""The recipe of examples/train/*/smollm2_*.yaml from its first command to its last, with a tiny
model in place of SmolLM2: docs/tutorials/pretrained.md."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from agentgym_env.run_store import RunStore
from agentgym_train.models.loading import load_policy
from tests.train.command import Command, finish

TRAIN = Path(__file__).parents[2] / "examples" / "train"
SHORT_SFT = [
    "steps=2", "rows_per_step=4", "trainer_args.warmup_steps=0", "eval.per_category=1",
    "eval.horizon=2",
    "trainer_args.torch_compile=false",
]  # fmt: skip
STARTER = "model=starter:textcraft/warm_policy"
SHORT_RL = [
    "steps=2",
    "horizon=[2,3]",
    "horizon.every=1",
    "prompts_per_step=2",
    "num_generations=2",
    "minibatches_per_rollout=2",
    "trainer_args.warmup_steps=0",
    "turn_max_tokens=8",
    "eval.horizon=2",
    "eval.per_category=1",
    "save_every=2",
    "trainer_args.torch_compile=false",
]


@pytest.mark.slow
@pytest.mark.parametrize("world", ["textcraft", "babyai"])
def test_the_recipe_runs_from_the_expert_to_the_comparison(world, tmp_path):
    for file in (TRAIN / world).iterdir():
        if file.suffix in (".yaml", ".py"):
            shutil.copy(file, tmp_path)

    def agentgym(*words: str) -> None:
        status, said = finish(Command(*words, cwd=tmp_path))
        assert status == 0, said

    *imitation, rl = commands_of(tmp_path / "smollm2_sft.yaml")
    for words in imitation:
        agentgym(*shortened(words))
    same, control, evaluation = commands_of(tmp_path / "smollm2_rl.yaml")
    assert same == rl
    agentgym(*rl, *SHORT_RL)
    agentgym(*control, *SHORT_RL)

    rows, broken = RunStore.open(tmp_path / "runs/smollm2/rl").metrics()
    assert broken == [] and [row["horizon"] for row in rows] == [2, 3]
    start = evaluation[evaluation.index("--baseline") + 1]
    assert weights(tmp_path, start) == weights(tmp_path, "control")

    table = tmp_path / "table.json"
    sizes = {"--samples": "2", "--horizon": "2", "--concurrency": "8"}
    agentgym(*replaced(evaluation, sizes), "--per-category", "1", "--json", str(table))
    stages = [word.partition("=")[0] for word in evaluation if "=runs/" in word]
    report = json.loads(table.read_text())
    assert list(report["reports"]) == stages and start in stages
    assert len(report["comparisons"]) >= 2


@pytest.mark.parametrize("world", ["textcraft", "babyai"])
def test_the_page_has_the_commands_of_the_configs(world):
    *imitation, rl = commands_of(TRAIN / world / "smollm2_sft.yaml")
    expected = [*imitation, *commands_of(TRAIN / world / "smollm2_rl.yaml")]
    assert rl in expected
    page = (TRAIN.parents[1] / "docs" / "tutorials" / "pretrained.md").read_text()
    blocks = [block.replace("\\\n", " ") for block in page.split("```\n")[1::2]]
    shown = [[shlex.split(line)[1:] for line in block.splitlines()] for block in blocks]
    assert expected in shown


def commands_of(config: Path) -> list[list[str]]:
    """The words of the commands in a config's comment."""
    lines = [line for line in config.read_text().splitlines() if line.startswith("#   agentgym")]
    return [shlex.split(line.lstrip("# "))[1:] for line in lines]


def shortened(words: list[str]) -> list[str]:
    if words[0] == "train":
        return [*words, *([] if len(words) > 2 else [STARTER]), *SHORT_SFT]
    return [*replaced(words, {"--n": "16"}), "--turn-max-tokens", "8"]


def replaced(words: list[str], values: dict[str, str]) -> list[str]:
    """The words with other values of some options."""
    return [values.get(before, word) for before, word in zip(["", *words], words, strict=False)]


def weights(folder: Path, stage: str) -> dict[str, bytes]:
    """The weights of a stage's policy, tensor by tensor, with its adapters merged."""
    model, _ = load_policy(str(folder / f"runs/smollm2/{stage}/model"))
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}
