"""Training from Python gives what the command gives, and takes objects for what a config names."""

import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import TrainerCallback

import agentgym_train
from agentgym_env.errors import BadRequest, ConfigError
from agentgym_env.run_store import RunStore
from agentgym_train import AgentTrainer, Algorithm, DPOConfig, RLConfig, SFTConfig, TokenBatch
from agentgym_train.config.read import config_from
from agentgym_train.rollout.agent import Agent
from agentgym_train.rollout.horizon import (
    Adaptive,
    Fixed,
    Horizon,
    Linear,
    ScalingInterStepwise,
    make_horizon,
)
from agentgym_train.runs.agent_trainer import _complete
from agentgym_train.runs.methods import method_of
from agentgym_train.runs.stored import resumed_config
from tests.train.command import Command, finish
from tests.train.small import merged, save_tiny_policy, textcraft_tokenizer, tiny_model
from tests.train.test_imitation_run import save_episodes

pytestmark = pytest.mark.usefixtures("textcraft_server")
SHORT = {
    "horizon": [2], "steps": 2, "prompts_per_step": 2, "num_generations": 2, "turn_max_tokens": 8,
    "max_tokens": 2048, "instruction": "", "learning_rate": 1e-2,
    "eval": {"per_category": 1, "before": False, "after": False}, "save_every": 1,
}  # fmt: skip
TEXTCRAFT = "agentgym/TextCraft-v0"
UNEVEN = "tests.train.uneven:Uneven"
"""A random policy gets different rewards there, so that it is trained."""


@dataclass(frozen=True)
class Doubled(Algorithm):
    """Twice the return of the episode, whatever the others did."""

    factor: float = 2.0

    def advantages(self, batch: TokenBatch) -> torch.Tensor:
        return batch.rewards.sum(1, keepdim=True) * self.factor * batch.loss_mask  # (B, T)


class Shouting(Agent):
    """Shows observations in capitals."""

    def begin(self, observation):
        message = super().begin(observation)
        return type(message)(message.text.upper())


class StopAt(TrainerCallback):
    """Stops after a step, with a checkpoint."""

    def __init__(self, step):
        self.step = step
        self.seen = []

    def on_step_end(self, args, state, control, **_):
        self.seen.append(state.global_step)
        if state.global_step == self.step:
            control.should_training_stop = True


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, policy):
    """(its folder, its callback, what training returned, its report) of a run from Python."""
    folder, callback = tmp_path_factory.mktemp("whole"), StopAt(9)
    args = RLConfig(output_dir=str(folder / "run"), **SHORT)
    with AgentTrainer(model=policy, env=UNEVEN, args=args, callbacks=[callback]) as trainer:
        metrics = trainer.train()
        report = trainer.evaluate(samples=2)
        trainer.save_model(folder / "saved")
    return folder, callback, metrics, report


def test_a_trainer_in_python_gives_the_weights_of_the_command(tmp_path, policy, whole):
    folder, _, metrics, report = whole
    assert metrics["step"] == 2 and {"reward", "success", "turns"} <= metrics.keys()
    assert report.episodes == 2 * report.tasks > 0
    file = tmp_path / "rl.yaml"
    values = {"model": policy, "env": UNEVEN, "output_dir": str(tmp_path / "command"), **SHORT}
    file.write_text(yaml.safe_dump(values))
    status, output = finish(Command("train", file))
    assert status == 0, output
    trained = weights(tmp_path / "command" / "model")
    assert same(weights(folder / "run" / "model"), trained)
    assert same(weights(folder / "saved"), trained)
    assert not same(trained, weights(Path(policy)))
    plain = [RunStore.open(run).read_json("run.json") for run in
             (folder / "run", tmp_path / "command")]  # fmt: skip
    assert {**plain[0]["config"], "output_dir": ""} == {**plain[1]["config"], "output_dir": ""}


def test_a_stopped_run_continues_bit_exactly(tmp_path, policy, whole):
    args = RLConfig(model=policy, env=UNEVEN, output_dir=str(tmp_path / "parts"), **SHORT)
    first, rest = StopAt(1), StopAt(9)
    for number, stop in enumerate((first, rest)):
        with AgentTrainer(args=args, callbacks=[stop]) as trainer:
            trainer.train(resume_from_checkpoint=number > 0)
        if number == 0:
            halfway = weights(tmp_path / "parts" / "model")
    folder, unbroken, *_ = whole
    assert not same(halfway, weights(folder / "run" / "model")), "the second step trains nothing"
    assert same(weights(folder / "run" / "model"), weights(tmp_path / "parts" / "model"))
    assert (unbroken.seen, first.seen, rest.seen) == ([1, 2], [1], [2])


def test_algorithm_horizon_agent_and_model_are_passed_as_objects(tmp_path):
    args = RLConfig(output_dir=str(tmp_path / "run"), **SHORT)
    with AgentTrainer(
        model=tiny_model(),
        env=TEXTCRAFT,
        args=args,
        processing_class=textcraft_tokenizer(),
        algorithm=Doubled(factor=3.0),
        horizon=lambda step: 1 + step,
        agent=Shouting,
    ) as trainer:
        trainer.train()
        assert trainer.trainer.algorithm == Doubled(3.0)
    store = RunStore.open(tmp_path / "run")
    assert [row["horizon"] for row in store.metrics()[0]] == [1, 2]
    episodes, _ = store.trajectories("train")
    assert {t.horizon for t in episodes} == {1, 2}
    config = store.read_json("run.json")["config"]
    algorithm = {"type": f"{__name__}:Doubled", "factor": 3.0}
    assert (config["algorithm"], config["horizon"]) == (algorithm, [1, 2])
    with pytest.raises(ConfigError, match=r"trained with Python objects .*agent: Shouting"):
        resumed_config(tmp_path / "run", trusted=True)


def test_a_setting_is_given_once():
    with pytest.raises(ConfigError, match="model is given twice: 'a', and 'b' in args"):
        AgentTrainer(model="a", env=TEXTCRAFT, args=RLConfig(model="b", output_dir="x"))
    with pytest.raises(ConfigError, match="missing output_dir and env"):
        AgentTrainer(model="a")
    with pytest.raises(ConfigError, match="are for RL"):
        AgentTrainer(model="a", args=SFTConfig(data=["d"], output_dir="x"), algorithm=Doubled())


class Counting(Horizon):
    """A schedule whose every call changes it."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return self.calls


def completed(horizon, **changes):
    args = RLConfig(model="m", env=TEXTCRAFT, output_dir="o", **merged(SHORT, changes))
    return _complete(args, "", "", None, horizon)


def test_a_schedule_is_not_stepped_when_the_config_is_completed():
    horizon = Counting()
    assert completed(horizon, steps=100).horizon == [1, 2] and horizon.calls == 0
    steps = []
    completed(lambda step: steps.append(step) or 1 + step, steps=100)
    assert steps == [0, 99]
    with pytest.raises(ConfigError, match="the horizon Locked cannot be copied"):
        completed(Locked())


class Locked(Counting):
    """One that cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    "horizon",
    [Fixed(7), ScalingInterStepwise((4, 9), 3), Linear((4, 9), 3), Adaptive((4, 9), 3, 0.5, 7, 2)],
)
def test_a_built_in_schedule_is_written_to_the_config(horizon):
    args = completed(horizon)
    assert make_horizon(args.horizon) == horizon
    (world,) = args.worlds
    assert world.eval.horizon == (7 if isinstance(horizon, Fixed) else 9)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env": None}, "env must be an id, 'module:Class' or a class; got 'None'"),
        ({"env": Doubled()}, "env must be an id, 'module:Class' or a class; got 'Doubled"),
        ({"model": 3}, "model must be a name or a loaded language model; got '3'"),
        ({"model": None}, "model must be a name or a loaded language model; got 'None'"),
        ({"args": {}}, "args must be an RLConfig, SFTConfig or DPOConfig; got '{}'"),
        ({"algorithm": Doubled}, "algorithm must be an instance of an Algorithm, such as GRPO"),
        ({"agent": "nonsense"}, "agent must be a class; names are for args.agent; got 'nonsense'"),
        ({"horizon": 0}, "horizon must be a Horizon or a function; numbers are in args.horizon"),
        ({"callbacks": [3]}, r"callbacks must be a list of transformers callbacks; got '\[3\]'"),
        ({"callbacks": 5}, "callbacks must be a list of transformers callbacks; got '5'"),
        ({"callbacks": TrainerCallback()}, "callbacks must be a list of transformers callbacks"),
        ({"model": Path("a/b/nothing")}, "no model in a/b/nothing"),
    ],
)
def test_an_argument_of_another_type_is_rejected_with_what_is_expected(changes, said):
    given = {"model": "m", "env": TEXTCRAFT, "args": RLConfig(output_dir="o"), **changes}
    with pytest.raises(ConfigError, match=said):
        AgentTrainer(**given)


def trainer_of(folder, **changes):
    args = RLConfig(output_dir=str(folder / "run"), **merged({**SHORT, "steps": 1}, changes))
    return AgentTrainer(tiny_model(), TEXTCRAFT, args, processing_class=textcraft_tokenizer())


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (lambda: 3, "cannot be made: TypeError"),
        (lambda form: 3, "makes a int, no Agent"),
        (lambda form: form.nothing, "cannot be made: AttributeError"),
    ],
)
def test_an_agent_that_makes_none_is_reported_before_anything_is_played(tmp_path, agent, said):
    args = RLConfig(output_dir=str(tmp_path / "run"), **{**SHORT, "steps": 1})
    with pytest.raises(ConfigError, match=said):
        AgentTrainer(
            tiny_model(), TEXTCRAFT, args, processing_class=textcraft_tokenizer(), agent=agent
        )
    assert not (tmp_path / "run").exists()


def test_a_closed_trainer_says_so_and_leaves_no_folder(tmp_path):
    with trainer_of(tmp_path) as trainer:
        with pytest.raises(ConfigError, match=r"is True or False.*, got 'checkpoint-1'"):
            trainer.train(resume_from_checkpoint="checkpoint-1")
        with pytest.raises(BadRequest, match="no run in"):
            trainer.train(resume_from_checkpoint=True)
    for use in (trainer.train, trainer.evaluate):
        with pytest.raises(ConfigError, match="this AgentTrainer is closed; create another one"):
            use()
    assert not (tmp_path / "run").exists()


def test_kernels_that_are_missing_are_reported(tmp_path):
    with pytest.raises(ConfigError, match="attention 'no_such' is not available"):
        trainer_of(tmp_path, attention="no_such")


def test_a_run_in_python_is_evaluated_and_summarized_and_resumes_with_its_settings_only(tmp_path):
    whole = {"eval": {"before": True, "after": True, "horizon": 1}}
    with trainer_of(tmp_path, **whole) as trainer:
        trainer.train()
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["before"]["episodes"] == summary["after"]["episodes"] == 4
    for name in ("curves.png", "eval_before.json", "eval_after.json"):
        assert (run / name).stat().st_size > 0
    said = r"was started with other settings: learning_rate was 0.01 and is 0.5"
    with (
        trainer_of(tmp_path, **whole, learning_rate=0.5) as trainer,
        pytest.raises(ConfigError, match=said),
    ):
        trainer.train(resume_from_checkpoint=True)


def test_a_schedule_that_goes_on_growing_trains_further_and_keeps_the_evaluation(tmp_path):
    for steps in (1, 2, 3):
        args = RLConfig(output_dir=str(tmp_path / "run"), **{**SHORT, "steps": steps})
        with AgentTrainer(
            tiny_model(), TEXTCRAFT, args, processing_class=textcraft_tokenizer(),
            horizon=lambda step: 1 + step,
        ) as trainer:  # fmt: skip
            trainer.train(resume_from_checkpoint=steps > 1)
            assert trainer.args.worlds[0].eval.horizon == 1
    store = RunStore.open(tmp_path / "run")
    assert [row["horizon"] for row in store.metrics()[0]] == [1, 2, 3]
    assert [json.loads((tmp_path / f"run/step-{n}/summary.json").read_text())["steps"]
            for n in (1, 2)] == [1, 2]  # fmt: skip


def test_dpo_of_a_model_that_was_trained_is_not_resumed_with_it_as_reference(tmp_path):
    data, model = [save_episodes(tmp_path / "episodes")], tiny_model()

    def trainer(model, steps):
        args = DPOConfig(
            output_dir=str(tmp_path / "run"), data=data, steps=steps, pairs_per_step=4,
            instruction="", max_tokens=1400, save_every=1,
        )  # fmt: skip
        return AgentTrainer(model, args=args, processing_class=textcraft_tokenizer())

    with trainer(model, 1) as first:
        first.train()
    with (
        trainer(model, 2) as again,
        pytest.raises(ConfigError, match="trained since it was loaded"),
    ):
        again.train(resume_from_checkpoint=True)
    with trainer(tiny_model(), 2) as further:
        further.train(resume_from_checkpoint=True)
    assert [row["step"] for row in RunStore.open(tmp_path / "run").metrics()[0]] == [1, 2]


def test_an_agent_trainer_trains_once_and_a_trained_model_is_not_resumed_with(tmp_path, policy):
    found = []
    for name, ends in (("whole", [9]), ("parts", [1, 9])):
        changes = {**SHORT, "beta": 0.1, "output_dir": str(tmp_path / name)}
        for number, step in enumerate(ends):
            args = RLConfig(model=policy, env=UNEVEN, **changes)
            with AgentTrainer(args=args, callbacks=[StopAt(step)]) as trainer:
                trainer.train(resume_from_checkpoint=number > 0)
                with pytest.raises(ConfigError, match="has trained; create another one"):
                    trainer.train(resume_from_checkpoint=True)
        found.append([row["kl"] for row in RunStore.open(tmp_path / name).metrics()[0]])
    assert found[0] == found[1] and found[0][-1] > 0
    with (
        AgentTrainer(trainer.policy.model, UNEVEN, RLConfig(**changes),
                     processing_class=textcraft_tokenizer()) as other,
        pytest.raises(ConfigError, match="trained since it was loaded"),
    ):  # fmt: skip
        other.train(resume_from_checkpoint=True)


def test_a_resume_that_fails_moves_no_result_of_the_run(tmp_path, policy):
    def trained(steps):
        changes = {**SHORT, "steps": steps, "algorithm": "ppo", "output_dir": str(tmp_path / "run")}
        with AgentTrainer(args=RLConfig(model=policy, env=UNEVEN, **changes)) as trainer:
            trainer.train(resume_from_checkpoint=steps > 2)

    trained(2)
    run = tmp_path / "run"
    for file in run.glob("checkpoints/*/critic*"):
        file.unlink()
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(ConfigError, match="has no critic"):
        trained(3)
    assert (
        before.items()
        <= {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}.items()
    )


def test_a_step_without_an_episode_is_shown_without_figures():
    row = {"reward": None, "success": None, "horizon": 5.0, "turns": 0.0}
    assert method_of(RLConfig()).shown.text(row) == "reward -  success -  horizon 5  turns 0.0"


def test_an_environment_class_is_served_if_it_can_be_imported(tmp_path, policy):
    from worlds import Guess

    args = RLConfig(output_dir=str(tmp_path / "run"), **{**SHORT, "steps": 1})
    with AgentTrainer(model=policy, env=Guess, args=args) as trainer:
        (runner,) = trainer.worlds
        assert runner.card.env == "worlds:Guess"

    class Local(Guess):
        pass

    with pytest.raises(ConfigError, match=r"cannot be imported as .*; define it in a module"):
        AgentTrainer(model=policy, env=Local, args=args)


def test_the_package_has_at_most_15_names_and_loads_no_torch():
    assert len(agentgym_train.__all__) <= 15
    for name in agentgym_train.__all__:
        assert getattr(agentgym_train, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        agentgym_train.Trainer  # noqa: B018
    code = (
        "import sys, agentgym_train; from agentgym_train import RLConfig, Agent, Horizon, collect; "
        "print({'torch', 'transformers', 'trl'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_one_number_is_a_horizon():
    assert RLConfig(horizon=3).horizon == [3]
    needed = {"model": "m", "env": TEXTCRAFT, "output_dir": "o"}
    assert config_from({**needed, "horizon": 3}).horizon == [3]
