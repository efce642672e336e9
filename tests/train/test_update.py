"""A step's loss and gradient are TRL's, whatever the loss and however the step is cut."""

from __future__ import annotations

import logging

import pytest
import torch
from trl import GRPOTrainer

from agentgym_env.errors import BadRequest
from agentgym_train.training.update import PackedUpdate, weight_of_part
from tests.train.ragged_rows import (
    FAMILIES,
    assert_same_gradients,
    episodes,
    loss_and_gradients,
    make_trainer,
    step_inputs,
)

ROWS = episodes(8)
TRL_LOSSES = {
    **{name: {"loss_type": name} for name in ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo")},
    "vespo": {"loss_type": "vespo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "two-sided clip": {"loss_type": "dapo", "delta": 1.5},
    "kl": {"loss_type": "grpo", "beta": 0.1},
    "off-policy mask": {"loss_type": "grpo", "off_policy_mask_threshold": 0.01},
    "entropy bonus": {"loss_type": "grpo", "entropy_coef": 0.01},
    "entropy quantile": {"loss_type": "dapo", "top_entropy_quantile": 0.5},
}


@pytest.fixture(params=TRL_LOSSES)
def trainers(request, tmp_path):
    """(TRL's trainer, ours) of one loss."""
    settings = TRL_LOSSES[request.param]
    return [make_trainer(kind, tmp_path, **settings) for kind in (GRPOTrainer, PackedUpdate)]


def inputs_of(trainer, rows=ROWS):
    inputs = step_inputs(rows)
    if trainer.off_policy_mask_threshold is not None:
        inputs["advantages"] = inputs["advantages"].sum(1)  # TRL's mask wants (B,)
    return inputs


def test_loss_and_gradient_are_trls_in_one_pass_and_in_eight(trainers):
    theirs, ours = trainers
    inputs = inputs_of(theirs)
    expected_loss, expected = loss_and_gradients(theirs, inputs)
    for budget in (10_000, 1):
        ours.max_tokens_per_microbatch = budget
        loss, gradients = loss_and_gradients(ours, inputs)
        assert loss == pytest.approx(expected_loss, abs=1e-5)
        for name, gradient in expected.items():
            assert torch.allclose(gradients[name], gradient, atol=1e-5), name
        assert_same_gradients(gradients, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_episodes_that_share_a_row_give_the_same_step(family, tmp_path, monkeypatch):
    ours = make_trainer(PackedUpdate, tmp_path, FAMILIES[family]())
    inputs = step_inputs(ROWS)
    expected_loss, expected = loss_and_gradients(ours, inputs)
    monkeypatch.setattr(
        "agentgym_train.training.packing.shares_rows", lambda config, stateful: True
    )
    for budget in (10_000, 60):
        ours.max_tokens_per_microbatch = budget
        loss, gradients = loss_and_gradients(ours, inputs)
        assert loss == pytest.approx(expected_loss, abs=1e-5)
        assert_same_gradients(gradients, expected)


class Watched(PackedUpdate):
    """Keeps the log-probabilities that the loss is taken of, with their gradient."""

    def _get_per_token_logps_and_entropies(self, *args, **options):
        logprobs, entropies, aux = super()._get_per_token_logps_and_entropies(*args, **options)
        # Nothing is 0 off the mask any more: what the loss makes of it would show.
        self.logprobs = (logprobs.detach() - 3.0).requires_grad_()
        self._scored = self.logprobs, entropies
        return self.logprobs, entropies, aux


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "bnpo", "cispo"])
def test_the_gradient_is_exactly_zero_at_every_unsampled_position(loss_type, tmp_path):
    trainer = make_trainer(Watched, tmp_path, loss_type=loss_type, beta=0.1)
    (row,) = episodes(1)
    inputs = step_inputs([row])
    loss_and_gradients(trainer, inputs)
    (gradient,) = trainer.logprobs.grad
    mask = torch.tensor(row[2]).bool()
    assert not gradient[~mask].any()
    assert gradient[mask].all()


def test_a_lost_episodes_filler_changes_nothing_but_the_count_of_episodes(tmp_path):
    trainer = make_trainer(PackedUpdate, tmp_path, loss_type="dapo")
    lost = [([0], [0], [0])]
    inputs = step_inputs(ROWS)
    with_lost = step_inputs([*ROWS, *lost])
    for name in ("advantages", "old_per_token_logps", "ref_per_token_logps"):
        with_lost[name] = torch.cat([inputs[name], torch.zeros_like(inputs[name][:1])])
    expected_loss, expected = loss_and_gradients(trainer, inputs)
    for budget in (10_000, 1):
        trainer.max_tokens_per_microbatch = budget
        loss, gradients = loss_and_gradients(trainer, with_lost)
        assert loss == pytest.approx(expected_loss, abs=1e-6)
        assert_same_gradients(gradients, expected)


def test_metrics_of_a_step_do_not_depend_on_the_cut(tmp_path):
    trainer = make_trainer(PackedUpdate, tmp_path, loss_type="dapo", beta=0.1)
    noted = []
    for budget in (10_000, 1):
        trainer.max_tokens_per_microbatch = budget
        trainer._metrics["train"].clear()
        loss_and_gradients(trainer, step_inputs(ROWS))
        assert all(len(values) == 1 for values in trainer._metrics["train"].values())
        noted.append({name: values[0] for name, values in trainer._metrics["train"].items()})
    assert noted[0].keys() >= {"entropy", "kl", "clip_ratio/low_min", "clip_ratio/high_max"}
    assert noted[1] == pytest.approx(noted[0], rel=1e-4)


def test_a_loss_over_all_episodes_is_computed_at_once_and_says_so_once(tmp_path, caplog):
    trainer = make_trainer(PackedUpdate, tmp_path, entropy_coef=0.01)
    with caplog.at_level(logging.WARNING, logger="agentgym_train.training.update"):
        for _ in range(2):
            loss_and_gradients(trainer, step_inputs(ROWS))
    said = [r.message for r in caplog.records if r.name == "agentgym_train.training.update"]
    assert len(said) == 1
    assert "an entropy bonus of TRL is computed over all episodes" in said[0]


def test_an_unknown_loss_says_which_there_are():
    with pytest.raises(BadRequest, match="no loss 'dpao'; choose from bnpo, cispo, dapo"):
        weight_of_part("dpao", episodes=1, all_episodes=2, tokens=1, all_tokens=2)
