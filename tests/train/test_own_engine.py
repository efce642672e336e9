"""An engine of the user's: how it is named, made and given weights."""

from __future__ import annotations

import pytest

import hosting
from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_train import AgentTrainer, RLConfig
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import Generation, GenerationEngine
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.policy import make_policy
from agentgym_train.rollout.policy_spec import PolicySpec
from agentgym_train.rollout.runner import RolloutRunner
from tests.train.small import save_tiny_policy

pytestmark = pytest.mark.usefixtures("guess_server")


class Says(GenerationEngine):
    """Answers every turn with the same text, and keeps what it was given."""

    made: list[Says] = []  # noqa: RUF012

    def __init__(self, model, tokenizer, *, max_tokens, text="1"):
        self.ids = tokenizer.encode(text, add_special_tokens=False)
        self.given = (model, max_tokens)
        self.versions: list[int] = []
        self.made.append(self)

    async def generate(self, prompt_ids, sampling, conversation=None):
        return Generation(list(self.ids), [-0.5] * len(self.ids), "length", self.versions[-1])

    async def update_weights(self, model, version):
        assert model is self.given[0]
        self.versions.append(version)


class Mute:
    """It has what an engine needs to be made, and nothing else."""

    def __init__(self, model, tokenizer, *, max_tokens):
        pass


class Silent(GenerationEngine):
    """It inherits everything and defines nothing."""

    def __init__(self, model, tokenizer, *, max_tokens):
        pass


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


def test_an_evaluation_samples_from_an_engine_of_ones_own_after_it_got_the_weights(model):
    engine = {"type": f"{__name__}:Says", "text": "2"}
    config = PolicyConfig(model=model, engine=engine, max_tokens=300, instruction="")
    with (
        RolloutRunner(hosting.GUESS) as runner,
        PolicySpec(config).actors("", runner.run) as actors,
    ):
        specs = [EpisodeSpec(task, 0, split="train") for task in "12"]
        first, second = runner.collect(actors, specs, 1)
    assert first.turns[0].response == second.turns[0].response == "2"
    assert (Says.made[-1].versions, Says.made[-1].given[1]) == ([0], 300)
    assert not Says.made[-1].is_exact, "its tokens are weighed in training"


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("nowhere:Engine", "cannot import the engine 'nowhere:Engine'"),
        (f"{__name__}:Mute", "has no generate and no update_weights .*class Mute"),
        (f"{__name__}:Silent", "has no generate and no update_weights$"),
        (
            {"type": f"{__name__}:Says", "txet": "2"},
            r"TypeError: .*'txet'.* Class\(model, tokenizer",
        ),
        ("nothing", "engine has no type 'nothing'; choose from hf, vllm, vllm_colocate, or write"),
    ],
)
def test_what_is_no_engine_is_named_with_what_to_write(model, engine, said):
    with pytest.raises(ConfigError, match=said):
        make_policy(PolicyConfig(model=model, engine=engine))


def test_an_engine_that_cannot_sample_meanwhile_is_rejected_before_a_run_is_moved(model, tmp_path):
    config = RLConfig(
        model=model, env=hosting.GUESS, output_dir=str(tmp_path / "run"), max_policy_age=1,
        engine=f"{__name__}:Says", eval={"before": False, "after": False},
    )  # fmt: skip
    RunStore.create(tmp_path / "run", {})
    with pytest.raises(ConfigError, match="Says does not define keep_own_weights"):
        AgentTrainer(args=config)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
