"""A training stops at the first number that is not finite, and saves nothing from then on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentgym_env.run_store import RunStore
from agentgym_train.training.dpo import AgentDPOTrainer
from agentgym_train.training.finite import NotFinite
from agentgym_train.training.sft import imitate
from tests.train.command import Command, finish
from tests.train.small import merged, textcraft_tokenizer, tiny_model
from tests.train.test_evolve import write as write_evolve
from tests.train.test_imitation import rows_of
from tests.train.test_imitation import settings as sft_settings
from tests.train.test_imitation_run import write
from tests.train.test_launching import train_in
from tests.train.test_preference import pair_rows
from tests.train.test_preference import settings as dpo_settings
from tests.train.test_run import write_config

BREAKS = {"learning_rate": 1e30, "trainer_args": {"max_grad_norm": 0.0}}
NO_EVAL = {"eval": {"before": False, "after": False}}


def saved(run: Path) -> list[str]:
    """The weights in a folder."""
    return sorted(str(path.relative_to(run)) for path in run.rglob("*.safetensors"))


def test_sft_stops_before_weights_that_a_huge_learning_rate_made_are_saved(tmp_path):
    settings = sft_settings(tmp_path, steps=2, **BREAKS)
    with pytest.raises(NotFinite, match="after step 2 are not finite") as caught:
        # The first learning rate of the warmup is 0.
        imitate(tiny_model(), textcraft_tokenizer(), rows_of("stick", "ladder"), settings)
    assert "There is no checkpoint yet" in str(caught.value)
    assert "learning_rate below 1e+30" in str(caught.value)
    assert caught.value.exit_status == 1 and saved(tmp_path) == []


def test_sft_stops_at_a_gradient_that_is_not_finite_though_nothing_is_clipped(tmp_path):
    settings = sft_settings(tmp_path, steps=4, **BREAKS)
    with pytest.raises(NotFinite, match=r"the gradient norm of step 3 is (nan|inf)"):
        imitate(tiny_model(), textcraft_tokenizer(), rows_of("stick", "ladder"), settings)


def test_sft_stops_at_a_loss_that_is_not_finite_in_its_first_step(tmp_path):
    model = tiny_model()
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with pytest.raises(NotFinite, match="the loss of step 1 is nan"):
        imitate(model, textcraft_tokenizer(), rows_of("stick"), sft_settings(tmp_path, steps=4))
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name]) or weight.isnan().any(), "it made no update"


def test_dpo_stops_at_a_log_ratio_that_is_not_finite(tmp_path):
    model = tiny_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(3e38)
    trainer = AgentDPOTrainer(
        model, textcraft_tokenizer(), pair_rows(), dpo_settings(tmp_path, None, 0), tmp_path
    )
    with pytest.raises(NotFinite, match=r"of step 1 (is|are) "):
        trainer.train()
    assert saved(tmp_path) == []


def test_a_vocabulary_with_excluded_tokens_is_not_mistaken_for_broken_weights(tmp_path):
    model = tiny_model()
    forward = model.forward

    def excluding(*arguments, **options):
        output = forward(*arguments, **options)
        if output.logits is not None:
            output.logits[..., -1] = float("-inf")
        return output

    model.forward = excluding
    imitate(model, textcraft_tokenizer(), rows_of("stick"), sft_settings(tmp_path, steps=1))
    assert saved(tmp_path) == ["model.safetensors"]


def assert_it_stopped(status: int, output: str, run: Path) -> None:
    """Exit status 1, an error without a traceback, no 0.0 for a loss, and no weights."""
    assert status == 1 and "Traceback" not in output, output
    assert "error: the " in output and "There is no checkpoint yet" in output, output
    assert saved(run) == [] and not (run / "summary.json").exists()
    rows, _ = RunStore.open(run).metrics()
    assert all(row["loss"] != 0.0 for row in rows)


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_run_that_breaks_exits_with_1_and_without_weights(tmp_path, method):
    status, output = finish(Command("train", write(tmp_path, method, **BREAKS)))
    assert_it_stopped(status, output, tmp_path / "run")


# Of equal returns, only the entropy bonus has a gradient.
RL = {"steps": 3, "save_every": 1, "entropy_bonus": 0.1, **NO_EVAL}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        BREAKS,
        {**BREAKS, "save_every": 50},
        {**BREAKS, "save_every": 50, "minibatches_per_rollout": 2},
    ],
    ids=["saved at once", "saved later", "within a step"],
)
def test_a_run_of_rl_that_breaks_exits_with_1_and_without_weights(tmp_path, changes):
    status, output = finish(Command("train", write_config(tmp_path, **merged(RL, changes))))
    assert_it_stopped(status, output, tmp_path / "run")


@pytest.mark.slow
def test_a_run_whose_critic_breaks_exits_with_1_and_without_weights(tmp_path):
    critic = {"algorithm": {"type": "ppo", "critic_learning_rate": 1e30}}
    config = write_config(tmp_path, **{**RL, **critic, "env": "tests.train.uneven:Uneven"})
    status, output = train_in(1, config)
    assert_it_stopped(status, output, tmp_path / "run")
    assert "critic's" in output


@pytest.mark.slow
def test_a_run_of_rl_stops_at_log_probabilities_that_are_not_finite(tmp_path):
    config = write_config(tmp_path, **RL)
    model = tiny_model()
    with torch.no_grad():
        model.model.embed_tokens.weight[:] = float("nan")
    model.save_pretrained(tmp_path / "policy")
    status, output = finish(Command("train", config))
    assert_it_stopped(status, output, tmp_path / "run")
    assert "tokens that were sampled for step 1 is not finite" in output


@pytest.mark.slow
def test_an_iteration_of_agent_evol_that_breaks_exits_with_1_and_without_a_model(tmp_path):
    config = write_evolve(tmp_path, "run", **BREAKS)
    status, output = finish(Command("train", config))
    assert_it_stopped(status, output, tmp_path / "run")


@pytest.mark.slow
def test_two_processes_stop_together(tmp_path):
    status, output = train_in(2, write_config(tmp_path, **RL, **BREAKS))
    assert status == 1 and "error: the " in output, output
    assert saved(tmp_path / "run") == []


@pytest.mark.slow
def test_the_last_good_checkpoint_is_named_and_training_goes_on_from_it(tmp_path):
    # The first learning rate of the warmup is 0: the first checkpoint is good.
    changes = merged(BREAKS, {"trainer_args": {"warmup_steps": 1}})
    config = write(tmp_path, "sft", **changes)
    for words in ([config], ["--resume", tmp_path / "run"]):
        status, output = finish(Command("train", *words))
        good = tmp_path / "run" / "checkpoints" / "checkpoint-1"
        assert status == 1 and "after step 2" in output, output
        assert f"The last good checkpoint is {good}" in output.replace("\n", "")
        assert saved(tmp_path / "run") == ["checkpoints/checkpoint-1/model.safetensors"]
    changes = f"model={good} learning_rate=1e-3 output_dir={tmp_path / 'again'}"
    status, output = finish(Command("train", config, *changes.split()))
    assert status == 0, output
    weights = load_file(tmp_path / "again" / "model" / "model.safetensors")
    assert all(weight.isfinite().all() for weight in weights.values())
