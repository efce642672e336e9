"""The critic: what it values, what its step is, and that how a step was cut does not matter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from agentgym_env.errors import BadRequest
from agentgym_train.algorithms.gae import PPO
from agentgym_train.training.critic import Critic
from agentgym_train.training.rows import TokenRows
from tests.train.ragged_rows import episodes, llama, make_ours, rows_to_train, step_inputs
from tests.train.test_trainer import first_task, guesses, train_one_step

pytestmark = pytest.mark.usefixtures("guess_server")
RATE = 0.05


def make_critic(tmp_path, budget=0, *, gradient_checkpointing=False, **fields) -> Critic:
    trainer = make_ours(
        tmp_path, model=llama(), max_tokens=budget, gradient_checkpointing=gradient_checkpointing
    )
    return Critic(trainer, trainer.model, PPO(**fields), trainer.update.microbatches)


def critic_for(tmp_path, budget=0, **fields):
    critic = make_critic(tmp_path, budget, critic_learning_rate=RATE, **fields)
    # Plain gradient descent: a step then shows the gradient.
    model = critic._model
    critic._optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    return critic


def batch() -> TokenRows:
    rows = rows_to_train(step_inputs(episodes(6, seed=3, max_turns=5)))
    torch.manual_seed(2)
    return replace(rows, returns=torch.randn(rows.ids.shape) * rows.trained)


def learn(critic: Critic, rows: TokenRows, count: float = 0.0) -> dict[str, float]:
    """A step from the critic's present values."""
    rows = replace(rows, values=critic.values(rows))
    return critic.learn(rows, count or float(rows.trained.sum()))


def plain_values(model, rows: TokenRows):
    """(R, W), row by row and without padding."""
    values = torch.zeros(rows.ids.shape)
    for i, length in enumerate(rows.lengths.tolist()):
        hidden = model.backbone(input_ids=rows.ids[i, :length][None]).last_hidden_state[0]
        each = (hidden @ model.head.weight.T + model.head.bias)[:, 0]  # (n,)
        values[i, 1:length] = each[:-1].detach()
    return values * rows.trained


def test_a_value_is_read_where_the_token_before_stands(tmp_path):
    critic, rows = critic_for(tmp_path), batch()
    found = critic.values(rows)
    assert torch.allclose(found, plain_values(critic._model, rows), atol=1e-5)
    assert found[~rows.trained].abs().max() == 0 and found[rows.trained].abs().min() > 0


def test_a_new_critic_values_everything_at_zero(tmp_path):
    assert make_critic(tmp_path).values(batch()).abs().max() == 0


@pytest.mark.parametrize("budget", [0, 1, 60])
def test_a_step_is_the_gradient_of_the_clipped_loss_however_it_is_split(tmp_path, budget):
    critic, rows = critic_for(tmp_path, budget, value_clip=0.5), batch()
    reference = critic_for(tmp_path / "reference")._model
    total = torch.zeros(())
    for i, length in enumerate(rows.lengths.tolist()):
        hidden = reference.backbone(input_ids=rows.ids[i, :length][None]).last_hidden_state[0]
        each = (hidden @ reference.head.weight.T + reference.head.bias)[:-1, 0]
        for place, value in enumerate(each, 1):
            if rows.trained[i, place]:
                # At the first step the value is the old one, so nothing is clipped.
                total = total + 0.5 * (value - rows.returns[i, place]) ** 2
    count = float(rows.trained.sum())
    (total / count).backward()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
    before = {n: w.detach().clone() for n, w in critic._model.named_parameters()}
    figures = learn(critic, rows)
    assert figures["critic/loss"] == pytest.approx(total.item() / count, rel=1e-4)
    assert figures["critic/grad_norm"] == pytest.approx(float(norm), rel=1e-3)
    moved = dict(reference.named_parameters())
    for name, weight in critic._model.named_parameters():
        step = (before[name] - weight.detach()) / RATE
        gradient = moved[name].grad if moved[name].grad is not None else torch.zeros(())
        assert torch.allclose(step, gradient, atol=3e-4), name


def test_a_critic_learns_returns_it_can_tell(tmp_path):
    critic = make_critic(tmp_path, critic_learning_rate=3e-3, value_clip=1e9)
    rows = batch()
    rows = replace(rows, returns=rows.trained * (rows.ids % 2).float())
    losses = [learn(critic, rows)["critic/loss"] for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]


def test_what_is_saved_is_what_is_loaded(tmp_path):
    critic, rows = critic_for(tmp_path), batch()
    learn(critic, rows, 5.0)
    critic.save(tmp_path / "kept")
    other = critic_for(tmp_path)
    other.load(tmp_path / "kept")
    assert torch.equal(critic.values(rows), other.values(rows))
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
    assert {t.outcome for t in trainer.trained_trajectories} == {"horizon"}
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(weight, before[name]), name


def test_the_critic_recomputes_its_activations_if_the_policy_does(tmp_path, monkeypatch):
    def learned(**settings):
        critic = make_critic(tmp_path, value_clip=1e9, **settings)
        critic._optimizer = torch.optim.SGD(critic._model.parameters(), lr=0.05)
        calls.clear()
        rows = rows_to_train(step_inputs(episodes(4, seed=5)))
        rows = replace(rows, returns=(rows.ids % 3 * rows.trained).float())
        for _ in range(2):  # the first step moves the head alone
            learn(critic, rows)
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
    assert len(calls) == once + 2 * 2
