"""A step's loss and gradient are TRL's, whatever the loss and however the step is split."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import replace

import pytest
import torch
import trl
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from agentgym_train.algorithms import LossSettings
from agentgym_train.training.dpo import AgentDPOTrainer
from agentgym_train.training.loss import RLLoss, RowScores
from agentgym_train.training.rl import RLTrainer
from agentgym_train.training.sft import AgentSFTTrainer
from agentgym_train.training.trainer import UNUSED, UpdatingTrainer
from agentgym_train.training.trl_rollout import trajectory_reward
from tests.train.ragged_rows import (
    FAMILIES,
    assert_same_gradients,
    episodes,
    make_ours,
    make_theirs,
    of_ours,
    of_theirs,
    rows_to_train,
    step_inputs,
)
from tests.train.small import textcraft_tokenizer, tiny_model

ROWS = episodes(8)
LOSSES = {
    "token": ({"loss_type": "dapo"}, LossSettings(), {}),
    "bnpo": ({"loss_type": "bnpo"}, LossSettings(), {}),
    "sequence": ({"loss_type": "grpo"}, LossSettings(mean="sequence"), {}),
    "constant": ({"loss_type": "dr_grpo"}, LossSettings(mean="constant"), {}),
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.1},
        LossSettings(kind="cispo", epsilon_high=1.1),
        {},
    ),
    "sapo": ({"loss_type": "sapo"}, LossSettings(kind="sapo", mean="sequence"), {}),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        LossSettings(mean="sequence", ratio="sequence"),
        {},
    ),
    "luspo": (
        {"loss_type": "luspo", "importance_sampling_level": "sequence"},
        LossSettings(mean="episode", ratio="sequence"),
        {},
    ),
    "asymmetric": (
        {"loss_type": "dapo", "epsilon": 0.1, "epsilon_high": 0.4},
        LossSettings(epsilon=0.1, epsilon_high=0.4),
        {},
    ),
    "two-sided clip": ({"loss_type": "dapo", "delta": 1.5}, LossSettings(delta=1.5), {}),
    "kl": (
        {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": True},
        LossSettings(mean="sequence"),
        {"beta": 0.1},
    ),
}
"""TRL's settings, and ours."""

needs_trls_loss = pytest.mark.skipif(
    trl.__version__.startswith("1.15."), reason="TRL 1.15 cannot compute its losses on a CPU"
)


@needs_trls_loss
@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_are_trls_in_one_pass_and_in_eight(name, tmp_path):
    theirs, settings, more = LOSSES[name]
    inputs = step_inputs(ROWS)
    expected_loss, expected = of_theirs(make_theirs(tmp_path, **theirs), inputs)
    for budget in (10_000, 1):
        ours = make_ours(tmp_path, settings, max_tokens=budget, **more)
        loss, gradients = of_ours(ours, rows_to_train(inputs, settings))
        assert loss == pytest.approx(expected_loss, abs=1e-5)
        assert_same_gradients(gradients, expected)


@needs_trls_loss
def test_the_entropy_bonus_is_trls_in_one_pass_and_in_eight(tmp_path):
    inputs = step_inputs(ROWS)
    expected_loss, expected = of_theirs(make_theirs(tmp_path, entropy_coef=0.01), inputs)
    plain, _ = of_ours(make_ours(tmp_path), rows_to_train(inputs))
    for budget in (10_000, 1):
        ours = make_ours(tmp_path, entropy_bonus=0.01, max_tokens=budget)
        loss, gradients = of_ours(ours, rows_to_train(inputs))
        assert loss == pytest.approx(expected_loss, abs=1e-5) and abs(loss - plain) > 1e-2
        assert_same_gradients(gradients, expected)


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_does_not_depend_on_the_split(name, tmp_path):
    """The same as above without TRL's loss, so that it runs with every version."""
    _, settings, more = LOSSES[name]
    rows = rows_to_train(step_inputs(ROWS), settings)
    expected_loss, expected = of_ours(make_ours(tmp_path, settings, **more), rows)
    loss, gradients = of_ours(make_ours(tmp_path, settings, max_tokens=1, **more), rows)
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    assert_same_gradients(gradients, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_episodes_that_share_a_row_give_the_same_step(family, tmp_path):
    rows = rows_to_train(step_inputs(ROWS))
    ours = make_ours(tmp_path, model=FAMILIES[family]())
    expected_loss, expected = of_ours(ours, rows)
    for budget in (10_000, 60):
        packed = make_ours(tmp_path, model=FAMILIES[family](), max_tokens=budget, shared_rows=True)
        loss, gradients = of_ours(packed, rows)
        assert loss == pytest.approx(expected_loss, abs=1e-5)
        assert_same_gradients(gradients, expected)


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_is_exactly_zero_at_every_unsampled_position(name):
    _, settings, more = LOSSES[name]
    rows = rows_to_train(step_inputs(episodes(3)), settings)
    # Nothing is 0 off the mask: what the loss makes of it would show.
    logprobs = (torch.rand(rows.ids.shape) - 3).requires_grad_()
    rows = replace(rows, old=logprobs.detach() + 0.01, advantages=rows.advantages + 0.5)
    scores = RowScores(logprobs, torch.zeros(rows.ids.shape), torch.zeros(rows.ids.shape))
    RLLoss(settings, **more)(scores, rows).loss.backward()
    assert not logprobs.grad[~rows.trained].any()
    assert logprobs.grad[rows.trained].any()


def test_an_episode_that_is_not_trained_changes_nothing(tmp_path):
    inputs, with_lost = step_inputs(ROWS), step_inputs([*ROWS, ([0], [0], [0])])
    for name in ("advantages", "old_per_token_logps", "ref_per_token_logps"):
        with_lost[name] = torch.cat([inputs[name], torch.zeros_like(inputs[name][:1])])
    expected_loss, expected = of_ours(make_ours(tmp_path), rows_to_train(inputs))
    for budget in (10_000, 1):
        ours = make_ours(tmp_path, max_tokens=budget)
        loss, gradients = of_ours(ours, rows_to_train(with_lost))
        assert loss == pytest.approx(expected_loss, abs=1e-6)
        assert_same_gradients(gradients, expected)


def test_metrics_of_a_step_do_not_depend_on_the_split(tmp_path):
    found = []
    for budget in (10_000, 1):
        ours = make_ours(tmp_path, max_tokens=budget, beta=0.1)
        _, metrics = ours.update.run(ours.model, [rows_to_train(step_inputs(ROWS))])
        found.append(metrics)
    assert found[0].keys() == {
        "entropy", "kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean",
    }  # fmt: skip
    assert min(found[0].values()) > 0
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_a_step_without_trained_tokens_has_no_metric_and_no_gradient(tmp_path):
    rows = rows_to_train(step_inputs([([5, 6], [7], [0]), ([5], [9, 8], [0, 0])]))
    ours = make_ours(tmp_path)
    loss, metrics = ours.update.run(ours.model, [rows])
    assert loss.item() == 0 and all(value != value for value in metrics.values())
    assert all(not weight.grad.any() for weight in ours.model.parameters())


def test_two_rows_of_an_episode_weigh_as_much_as_its_tokens(tmp_path):
    """In a mean over episodes of means, and in the KL penalty, which advantages do not scale."""
    inputs, settings = step_inputs(episodes(2)), LossSettings(mean="sequence")
    inputs["advantages"] = torch.zeros_like(inputs["advantages"])
    sizes = (inputs["completion_mask"] * inputs["tool_mask"]).sum(1)
    ours = make_ours(tmp_path, settings, beta=1.0)
    alone = []
    for row in range(2):
        part = {n: v[row : row + 1] for n, v in inputs.items() if v.dim()}
        alone.append(of_ours(ours, rows_to_train(part, settings))[0])
    joined = rows_to_train(inputs, settings, episodes=1, sizes=sizes.sum().repeat(2))
    together, _ = of_ours(ours, joined)
    share = (sizes / sizes.sum()).tolist()
    assert together == pytest.approx(
        sum(a * s for a, s in zip(alone, share, strict=True)), rel=1e-4
    )
    assert min(alone) > 0


DOCUMENTED = {
    "__init__", "training_step", "get_train_dataloader", "log", "save_model",
    "__doc__", "__module__", "__annotations__", "__qualname__", "__firstlineno__",
    "__static_attributes__", "__annotate_func__", "__annotations_cache__",
}  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(RLTrainer, GRPOTrainer), (AgentSFTTrainer, SFTTrainer), (AgentDPOTrainer, DPOTrainer)],
)
def test_only_documented_methods_of_the_libraries_are_overridden(ours, theirs):
    own = {name for kind in (ours, UpdatingTrainer) for name in vars(kind)}
    known = {name for kind in theirs.__mro__ for name in vars(kind)}
    assert own & known <= DOCUMENTED
    assert {"training_step", "get_train_dataloader", "log"} <= own & known


def assigned(kind: type) -> set[str]:
    """The attributes that a class sets on itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "config"),
    [
        (RLTrainer, GRPOTrainer, GRPOConfig),
        (AgentSFTTrainer, SFTTrainer, SFTConfig),
        (AgentDPOTrainer, DPOTrainer, DPOConfig),
    ],
)
def test_no_attribute_of_ours_hides_one_of_trls(ours, theirs, config, tmp_path):
    rewards = {"reward_funcs": [trajectory_reward]} if theirs is GRPOTrainer else {}
    columns = {
        GRPOTrainer: ["prompt"], SFTTrainer: ["input_ids"],
        DPOTrainer: ["prompt", "chosen", "rejected"],
    }  # fmt: skip
    size = {"per_device_train_batch_size": 8, "report_to": "none", "use_cpu": True, "bf16": False}
    # DPO compares with a copy.
    reference = {"ref_model": tiny_model()} if theirs is DPOTrainer else {}
    trainer = theirs(
        model=tiny_model(),
        processing_class=textcraft_tokenizer(),
        args=config(output_dir=str(tmp_path), **size),
        train_dataset=UNUSED.select_columns(columns[theirs]),
        **rewards,
        **reference,
    )
    names = {*dir(trainer), *vars(trainer)}
    own = assigned(ours) | assigned(UpdatingTrainer)
    assert {"update", "reference" if ours is not AgentSFTTrainer else "rows"} <= own
    assert not own & names
