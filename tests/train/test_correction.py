"""What an engine sampled is weighed by the trainer's probability over the engine's."""

from __future__ import annotations

import math

import pytest
import torch

from agentgym_env.errors import BadRequest
from agentgym_train.config.read import config_from
from agentgym_train.training.advantages import ImportanceSampling, ratio_metrics
from tests.train.test_trainer import first_task, guesses, train_one_step

pytestmark = pytest.mark.usefixtures("guess_server")
NEEDED = {"model": "hub/id", "env": "textcraft", "output_dir": "x"}
TRAINER = torch.tensor([[-1.0, -2.0, -9.0], [-0.5, -0.5, -7.0]])
ENGINE = torch.tensor([[-1.5, -1.0, -1.0], [-0.5, -3.0, -1.0]])
MASK = torch.tensor([[True, True, False], [True, True, False]])


def test_by_token_each_ratio_is_cut_at_the_most():
    found = ImportanceSampling("token", 2.0).ratios(TRAINER, ENGINE, MASK)
    wanted = torch.tensor([[math.exp(0.5), math.exp(-1.0), 1.0], [1.0, 2.0, 1.0]])
    assert torch.allclose(found, wanted)


def test_by_the_geometric_mean_an_episode_counts_as_by_token_or_not_at_all():
    # The means of the log ratios are -0.25 and 1.25.
    found = ImportanceSampling("geometric", 2.0, 1.3).ratios(TRAINER, ENGINE, MASK)
    wanted = torch.tensor([[math.exp(0.5), math.exp(-1.0), 1.0], [0.0, 0.0, 1.0]])
    assert torch.allclose(found, wanted)
    assert (
        ImportanceSampling("geometric", 2.0, 1.2).ratios(TRAINER, ENGINE, MASK)[MASK] == 0
    ).all()


def test_clipped_is_the_gradient_of_ppos_objective_relative_to_the_policy_that_sampled():
    draws = torch.Generator().manual_seed(0)
    engine = -torch.rand((8, 50), generator=draws)
    trainer = (engine + 0.3 * torch.randn((8, 50), generator=draws)).requires_grad_()
    advantages = torch.randn((8, 50), generator=draws)
    mask = torch.ones_like(advantages).bool()
    ratio = (trainer - engine).exp()
    objective = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    (wanted,) = torch.autograd.grad(objective.sum(), trainer)
    found = ImportanceSampling("clipped", most=9.0, epsilon=0.2)
    weights = found.ratios(trainer.detach(), engine, mask)
    clipped = found.clipped(weights, advantages)
    assert torch.allclose(advantages * weights.masked_fill(clipped, 0.0), wanted, atol=1e-6)
    assert 0.1 < clipped.double().mean() < 0.9
    assert not ImportanceSampling("token").clipped(weights, advantages).any()


def test_old_samples_are_clipped_unless_the_config_says_otherwise():
    def kind(**changes):
        return config_from({**NEEDED, **changes}).correction["kind"]

    assert kind() == "auto" and kind(max_policy_age=1) == "clipped"
    assert kind(max_policy_age=1, importance_sampling="token") == "token"
    own = {"type": "clipped", "epsilon": 0.1, "cap": 2}
    assert config_from({**NEEDED, "importance_sampling": own}).correction == {
        "kind": "clipped", "most": 2, "epsilon": 0.1,
    }  # fmt: skip


def test_a_mean_excludes_no_long_episode_that_it_would_keep_short():
    draws = torch.Generator().manual_seed(0)
    by_geometric, by_product = [], []
    for length in (200, 5000):
        drift_per_token = torch.randn((2000, length), generator=draws) * 0.03 - 0.03**2 / 2
        zeros, mask = torch.zeros_like(drift_per_token), torch.ones_like(drift_per_token).bool()
        weights = ImportanceSampling("geometric").ratios(drift_per_token, zeros, mask)
        by_geometric.append(float((weights[:, 0] == 0).double().mean()))
        by_product.append(float((drift_per_token.sum(1).abs() > math.log(3)).double().mean()))
    assert by_geometric == [0.0, 0.0]
    assert by_product[0] < 0.02 and by_product[1] > 0.6, "the rule that this one replaces"


def test_the_metrics_say_what_is_excluded_and_truncated():
    found = ImportanceSampling("geometric", 2.0, 1.3).metrics(TRAINER, ENGINE, MASK)
    assert found["importance/excluded"] == 0.5
    assert found["importance/truncated"] == 0.25
    weights = [math.exp(0.5), math.exp(-1.0), 0.0, 0.0]
    effective = sum(weights) ** 2 / sum(w * w for w in weights) / 4
    assert found["importance/effective"] == pytest.approx(effective)
    assert ImportanceSampling().metrics(TRAINER, ENGINE, torch.zeros_like(MASK)) == {}


@pytest.mark.parametrize(
    ("kind", "exact", "needed"),
    [("auto", True, False), ("auto", False, True), ("off", False, False), ("token", True, True)],
)
def test_auto_trusts_an_engine_that_computes_as_the_trainer_does(kind, exact, needed):
    assert ImportanceSampling(kind).is_needed(exact) is needed


def test_the_drift_is_of_the_sampled_tokens_alone():
    found = ratio_metrics(TRAINER, ENGINE, MASK)
    assert found["engine/logprob_difference_max"] == pytest.approx(2.5)
    assert found["engine/logprob_difference_mean"] == pytest.approx((0.5 + 1.0 + 0 + 2.5) / 4)
    assert found["engine/kl"] >= 0
    assert ratio_metrics(TRAINER, TRAINER, torch.zeros_like(MASK)) == {}


def test_an_engine_with_probabilities_of_its_own_is_weighed_in_a_step(tmp_path):
    # The scripted engine says -0.5 for every token, which is not what the policy says.
    task = first_task()
    wrong = next(n for n in "123456" if n not in (task, "2"))
    script = [wrong, task, wrong, wrong]
    plain, before = train_one_step(tmp_path / "plain", guesses(script))
    weighed, _ = train_one_step(tmp_path / "weighed", guesses(script), importance_sampling="token")
    assert "engine/kl" not in plain.state.log_history[0]
    assert weighed.state.log_history[0]["engine/logprob_difference_max"] > 0.5
    moved = [
        sum(
            float((w.detach() - before[n]).square().sum())
            for n, w in trainer.model.named_parameters()
        )
        for trainer in (plain, weighed)
    ]
    assert 0 < moved[1] < moved[0], "every ratio is below one here"


def test_bad_settings_are_told():
    values = {"model": "m", "env": "e", "output_dir": "o"}
    with pytest.raises(BadRequest, match=r"importance_sampling\.cap is at least 1"):
        config_from({**values, "importance_sampling": {"cap": 0.5}})
    with pytest.raises(BadRequest, match="importance_sampling has no type 'sometimes'"):
        config_from({**values, "importance_sampling": "sometimes"})
    with pytest.raises(BadRequest, match="train_outcomes has lunch"):
        config_from({**values, "train_outcomes": ["lunch"]})
