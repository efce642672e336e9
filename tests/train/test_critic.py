"""The critic: what it values, what its step is, and that how a step was cut does not matter."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from agentgym_env.errors import BadRequest
from agentgym_train.algorithms.gae import PPO, CriticTargets
from agentgym_train.training.critic import Critic
from agentgym_train.training.update import PackedUpdate
from tests.train.ragged_rows import episodes, llama, make_trainer, padded
from tests.train.test_trainer import first_task, guesses, train_one_step

pytestmark = pytest.mark.usefixtures("guess_server")
RATE = 0.05


def critic_for(tmp_path, budget=0, **fields):
    trainer = make_trainer(PackedUpdate, tmp_path, llama())
    trainer.max_tokens_per_microbatch = budget
    critic = Critic(trainer, trainer.model, PPO(critic_learning_rate=RATE, **fields))
    # Plain gradient descent: a step then shows the gradient.
    model = critic._model
    critic._optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    return critic


def batch():
    rows = padded(episodes(6, seed=3, max_turns=5))
    ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], 1)  # (B, W)
    attention = torch.cat([rows["prompt_mask"], rows["completion_mask"]], 1)
    trained = torch.cat([torch.zeros_like(rows["prompt_mask"]), rows["tool_mask"]], 1)
    torch.manual_seed(2)
    returns = torch.randn(ids.shape) * trained
    return ids, attention, trained.bool(), returns


def plain_values(model, ids, attention, trained):
    """(B, W), row by row and with no padding."""
    values = torch.zeros(ids.shape)
    for i, (row, real) in enumerate(zip(ids, attention.bool(), strict=True)):
        hidden = model.backbone(input_ids=row[real][None]).last_hidden_state[0]
        each = (hidden @ model.head.weight.T + model.head.bias)[:, 0]  # (n,)
        at = torch.zeros(len(row))
        at[real.nonzero()[1:, 0]] = each[:-1].detach()
        values[i] = at * trained[i]
    return values


def test_a_value_is_read_where_the_token_before_stands(tmp_path):
    critic = critic_for(tmp_path)
    ids, attention, trained, _ = batch()
    found = critic.values(ids, attention, trained)
    assert torch.allclose(found, plain_values(critic._model, ids, attention, trained), atol=1e-5)
    assert found[~trained].abs().max() == 0 and found[trained].abs().min() > 0


def test_a_new_critic_values_everything_at_zero(tmp_path):
    trainer = make_trainer(PackedUpdate, tmp_path, llama())
    critic = Critic(trainer, trainer.model, PPO())
    ids, attention, trained, _ = batch()
    assert critic.values(ids, attention, trained).abs().max() == 0


@pytest.mark.parametrize("budget", [0, 1, 60])
def test_a_step_is_the_gradient_of_the_clipped_loss_however_it_is_cut(tmp_path, budget):
    critic = critic_for(tmp_path, budget, value_clip=0.5)
    ids, attention, trained, returns = batch()
    old = critic.values(ids, attention, trained)
    reference = critic_for(tmp_path / "reference")._model
    total = torch.zeros(())
    for i in range(len(ids)):
        real = attention[i].bool()
        hidden = reference.backbone(input_ids=ids[i][real][None]).last_hidden_state[0]
        each = (hidden @ reference.head.weight.T + reference.head.bias)[:-1, 0]
        places = real.nonzero()[1:, 0]
        for value, place in zip(each, places, strict=True):
            if trained[i, place]:
                # At the first step the value is the old one, so nothing is clipped.
                total = total + 0.5 * (value - returns[i, place]) ** 2
    count = float(trained.sum())
    (total / count).backward()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
    before = {n: w.detach().clone() for n, w in critic._model.named_parameters()}
    figures = critic.learn(ids, attention, old, CriticTargets(returns, trained), count)
    assert figures["critic/loss"] == pytest.approx(total.item() / count, rel=1e-4)
    assert figures["critic/grad_norm"] == pytest.approx(float(norm), rel=1e-3)
    moved = dict(reference.named_parameters())
    for name, weight in critic._model.named_parameters():
        step = (before[name] - weight.detach()) / RATE
        gradient = moved[name].grad if moved[name].grad is not None else torch.zeros(())
        assert torch.allclose(step, gradient, atol=3e-4), name


def test_a_critic_learns_returns_it_can_tell(tmp_path):
    trainer = make_trainer(PackedUpdate, tmp_path, llama())
    critic = Critic(trainer, trainer.model, PPO(critic_learning_rate=3e-3, value_clip=1e9))
    ids, attention, trained, _ = batch()
    returns = trained * (ids % 2).float()
    targets = CriticTargets(returns, trained)
    losses = []
    for _ in range(30):
        old = critic.values(ids, attention, trained)
        losses.append(
            critic.learn(ids, attention, old, targets, float(trained.sum()))["critic/loss"]
        )
    assert losses[-1] < 0.7 * losses[0]


def test_what_is_saved_is_what_is_loaded(tmp_path):
    critic = critic_for(tmp_path)
    ids, attention, trained, returns = batch()
    old = critic.values(ids, attention, trained)
    critic.learn(ids, attention, old, CriticTargets(returns, trained), 5.0)
    critic.save(tmp_path / "kept")
    other = critic_for(tmp_path)
    other.load(tmp_path / "kept")
    assert torch.equal(
        critic.values(ids, attention, trained), other.values(ids, attention, trained)
    )
    with pytest.raises(BadRequest, match="has no critic"):
        other.load(tmp_path / "none")


@pytest.mark.parametrize("algorithm", ["ppo", "turn_gae"])
def test_the_first_step_of_ppo_is_that_of_reinforce_with_whitened_returns(tmp_path, algorithm):
    # A critic that starts at 0 gives GAE nothing to subtract; lambda and gamma are 1.
    arguments = {"gamma": 1.0, "lam": 1.0, "critic_learning_rate": 0.1}
    script = [first_task(), "9", "8", "9"]
    trainer, _ = train_one_step(
        tmp_path / "a", guesses(script), algorithm={"type": algorithm, **arguments}
    )
    row = trainer.state.log_history[0]
    assert {"critic/loss", "critic/grad_norm"} <= set(row)
    head = trainer.step_advantages.critic._model.head
    assert head.weight.abs().max() > 0, "the critic learned"
    if algorithm == "ppo":
        other, _ = train_one_step(tmp_path / "b", guesses(script), algorithm="reinforce_pp")
        for (name, one), two in zip(
            trainer.model.named_parameters(), other.model.parameters(), strict=True
        ):
            assert torch.allclose(one, two, atol=1e-5), name


def test_while_the_critic_warms_up_the_policy_stays_as_it_is(tmp_path):
    trainer, before = train_one_step(
        tmp_path, guesses([first_task(), "9", "8", "9"]),
        algorithm={"type": "ppo", "critic_warmup": 1, "critic_learning_rate": 0.1}, beta=0.0,
        compute_dtype="float32",
        trainer_args={"weight_decay": 0.1, "save_strategy": "no"},
    )  # fmt: skip
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(weight, before[name]), name
    assert trainer.step_advantages.critic._model.head.weight.abs().max() > 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "reinforce_pp", "grpo", "rloo", "gigpo"])
def test_a_lost_episode_is_in_nothing_that_trains(tmp_path, algorithm):
    # The same three episodes, with and without a fourth that was lost.
    with_lost, _ = train_one_step(
        tmp_path / "a",
        guesses([first_task(), "9", "8", "9"], lost={3, 4, 5}),
        algorithm=algorithm,
    )
    assert with_lost.state.log_history[0]["lost"] == 1
    for _, weight in with_lost.model.named_parameters():
        assert torch.isfinite(weight).all()


def test_outcomes_that_do_not_train_leave_the_weights_alone(tmp_path):
    # Nobody guesses right in two turns: every episode ends at the horizon.
    trainer, before = train_one_step(
        tmp_path, guesses(["9", "9", "9", "8"]), train_outcomes=["success", "failure"]
    )
    assert {t.outcome for t in trainer._trajectories} == {"horizon"}
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(weight, before[name]), name


def test_the_critic_recomputes_its_activations_if_the_policy_does(tmp_path, monkeypatch):
    def learned(**settings):
        trainer = make_trainer(PackedUpdate, tmp_path, llama(), **settings)
        critic = Critic(trainer, trainer.model, PPO(value_clip=1e9))
        critic._optimizer = torch.optim.SGD(critic._model.parameters(), lr=0.05)
        rows = padded(episodes(4, seed=5))
        ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], 1)
        attention = torch.cat([rows["prompt_mask"], rows["completion_mask"]], 1)
        mask = torch.cat([torch.zeros_like(rows["prompt_mask"]), rows["tool_mask"]], 1).bool()
        targets = CriticTargets((ids % 3 * mask).float(), mask)
        for _ in range(2):  # the first step moves the head alone
            old = critic.values(ids, attention, mask)
            critic.learn(ids, attention, old, targets, float(mask.sum()))
        return dict(critic._model.named_parameters())

    calls = []
    forward = LlamaDecoderLayer.forward
    monkeypatch.setattr(
        LlamaDecoderLayer, "forward", lambda *a, **k: (calls.append(1), forward(*a, **k))[1]
    )
    plain = learned(gradient_checkpointing=False)
    once = len(calls)
    for name, weight in learned(gradient_checkpointing=True).items():
        assert torch.allclose(weight, plain[name], atol=1e-6), name
    # 2 layers, of 2 steps with one pass for the values and one for the loss, which runs again.
    assert len(calls) - once == once + 2 * 2
