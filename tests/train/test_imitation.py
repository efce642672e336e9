"""Behaviour cloning: SFT's loss is on the policy's tokens, and does not depend on its passes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from msgspec import structs

from agentgym_env.errors import BadRequest
from agentgym_servers.worlds.textcraft.env import TextCraft
from agentgym_train.config.learn import SFTConfig
from agentgym_train.data.datasets import warnings_of_shown_tasks
from agentgym_train.data.tokenize import EpisodeTokenizer, training_row
from agentgym_train.training.sft import AgentSFTTrainer, check_packing, imitate
from tests.train.demonstrating import demonstration
from tests.train.small import merged, textcraft_tokenizer, tiny_model


def rows_of(*tasks: str) -> list[dict[str, list[int]]]:
    episode_tokenizer = EpisodeTokenizer(textcraft_tokenizer())
    return [
        training_row(tokens)
        for task in tasks
        for tokens in episode_tokenizer.rows(demonstration(task))
    ]


def settings(out: Path, **changes) -> SFTConfig:
    values = {"rows_per_step": 4, "learning_rate": 1e-3, "trainer_args": {"warmup_steps": 2}}
    values = merged(values, changes)
    return SFTConfig(model="tiny", data=["made here"], output_dir=str(out), **values)


@pytest.mark.slow
def test_fitting_to_demonstrations_lowers_their_loss_and_saves_the_policy(tmp_path):
    tokenizer, model = textcraft_tokenizer(), tiny_model()
    tasks = random.Random(0).sample(list(TextCraft().tasks.split("train")), 8)
    rows = rows_of(*tasks)
    before = slow_loss(model, rows)
    imitate(model, tokenizer, rows, settings(tmp_path, epochs=10, learning_rate=2e-3))
    assert slow_loss(model.eval(), rows) < 0.8 * before
    assert (tmp_path / "model.safetensors").is_file()


def test_tasks_of_the_evaluation_that_are_learned_from_are_reported():
    known = TextCraft().tasks
    episodes = [demonstration(task) for task in known.split("paper")[:3]]
    episodes.append(demonstration(known.split("paper_train")[0]))
    (said,) = warnings_of_shown_tasks(known, "paper", episodes[0].env, episodes)
    assert "3 of the 100 tasks of eval.split 'paper' are in the data" in said
    assert warnings_of_shown_tasks(known, "paper", episodes[0].env, episodes[3:]) == []
    assert warnings_of_shown_tasks(known, "paper", "agentgym/BabyAI-v0", episodes) == []
    variants = [structs.replace(episode, env="variants:RenamedTextCraft") for episode in episodes]
    assert len(warnings_of_shown_tasks(known, "paper", episodes[0].env, variants)) == 1


def test_no_episode_to_learn_from_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="there is no episode to learn from"):
        imitate(tiny_model(), textcraft_tokenizer(), [], settings(tmp_path))


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param({"packing": False, "max_tokens_per_microbatch": 1}, marks=pytest.mark.slow),
        {"packing": False, "max_tokens_per_microbatch": 400},
        pytest.param({"packing": True}, marks=pytest.mark.slow),
        {"packing": True, "max_tokens_per_microbatch": 500},
    ],
    ids=["a row a pass", "padded", "packed in one row", "packed in passes"],
)
def test_loss_gradient_and_weights_do_not_depend_on_padding_packing_and_passes(tmp_path, layout):
    rows = rows_of("stick", "ladder", "chest", "torch", "bowl", "barrel")
    found = fitted(rows, settings(tmp_path, steps=2, **layout))
    model = tiny_model()
    for step, loss in enumerate(found["losses"]):
        assert loss == pytest.approx(
            slow_step(model, rows, step, lr=found["rates"][step]), abs=1e-5
        )
    for weight, expected in zip(found["model"].parameters(), model.parameters(), strict=True):
        assert torch.allclose(weight, expected, atol=1e-5)


def test_a_model_in_whose_rows_texts_see_one_another_is_not_packed():
    model = tiny_model()
    check_packing(model)

    class Mixing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(64, 8)

        def get_input_embeddings(self):
            return self.embedding

        def forward(self, input_ids, **_):
            hidden = self.embedding(input_ids).cumsum(1)
            return type("Output", (), {"logits": hidden @ self.embedding.weight.T})()

    with pytest.raises(
        BadRequest, match="the output of Mixing for a text depends on the text before it"
    ):
        check_packing(Mixing())


def fitted(rows, config: SFTConfig) -> dict[str, object]:
    """Two steps of plain gradient descent by the trainer."""
    plain = {"optim": "sgd", "max_grad_norm": 0.0, "save_strategy": "no"}
    model = tiny_model()
    config = SFTConfig(
        **{
            **{name: getattr(config, name) for name in ("model", "data", "output_dir", "steps")},
            "packing": config.packing,
            "max_tokens_per_microbatch": config.max_tokens_per_microbatch,
            "rows_per_step": len(rows),
            "learning_rate": 0.1,
            "shuffle": False,
            "trainer_args": plain,
        }
    )
    trainer = AgentSFTTrainer(
        model, textcraft_tokenizer(), rows, config, Path(config.output_dir) / "checkpoints"
    )
    trainer.train()
    log = [row for row in trainer.state.log_history if "loss" in row]
    assert log[0]["num_tokens"] == sum(len(row["input_ids"]) for row in rows)
    return {
        "losses": [row["loss"] for row in log],
        "rates": [row["learning_rate"] for row in log],
        "model": model,
    }


def slow_step(model, rows, step: int, lr: float) -> float:
    """The loss of all rows, one after the other, and a step of gradient descent."""
    model.train()
    model.zero_grad()
    loss = mean_over_tokens(model, rows)
    loss.backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= lr * weight.grad
    return loss.item()


def mean_over_tokens(model, rows) -> torch.Tensor:
    lost, count = torch.zeros(()), 0
    for row in rows:
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"][1:])
        logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        chosen = labels >= 0
        lost = lost - logprobs[chosen, labels[chosen]].sum()
        count += int(chosen.sum())
    return lost / count


@torch.no_grad()
def slow_loss(model, rows) -> float:
    return mean_over_tokens(model, rows).item()
