"""DPO over whole episodes: the log-ratios are of the policy's tokens, and of nothing else."""

from __future__ import annotations

import copy
import math

import msgspec
import pytest
import torch
from transformers import TrainerCallback

from agentgym_env.errors import BadRequest
from agentgym_train.config.learn import DPOConfig
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.data.pairs import make_pairs
from agentgym_train.data.tokenize import EpisodeTokenizer
from agentgym_train.training.dpo import AgentDPOTrainer, pair_row
from tests.train.demonstrating import demonstration
from tests.train.small import textcraft_tokenizer, tiny_model
from tests.train.templates import APPEND_ONLY, tokenizer_with

TASKS = ("stick", "ladder", "chest", "torch", "bowl")
BETA = 0.3


def failed(task: str, turns: int = 2):
    """An episode of the same start that is given up after so many idle turns."""
    good = demonstration(task)
    idle = msgspec.structs.replace(
        good.turns[0], response="inventory", action="inventory", observation="Inventory: nothing."
    )
    return msgspec.structs.replace(
        good, turns=[idle] * turns, outcome="horizon", success=False, policy="idle"
    )


def pair_rows(tokenizer=None, tasks=TASKS):
    episodes = [
        e for n, task in enumerate(tasks) for e in (demonstration(task), failed(task, n + 1))
    ]
    episode_tokenizer = EpisodeTokenizer(tokenizer or textcraft_tokenizer())
    return [pair_row(pair, episode_tokenizer) for pair in make_pairs(episodes)]


@pytest.mark.parametrize("name", APPEND_ONLY)
def test_the_masks_of_a_pair_decode_to_exactly_what_each_policy_says(name):
    tokenizer = tokenizer_with(APPEND_ONLY[name])
    (row,) = pair_rows(tokenizer, ("ladder",))
    end = tokenizer.convert_ids_to_tokens(
        EpisodeTokenizer(tokenizer).chat_of(demonstration()).end_id
    )
    for side, episode in (("chosen", demonstration("ladder")), ("rejected", failed("ladder", 1))):
        ids, mask = row[f"{side}_ids"], row[f"{side}_mask"]
        said = tokenizer.decode([i for i, own in zip(ids, mask, strict=True) if own])
        assert said == "".join(turn.response + end for turn in episode.turns)


@pytest.mark.parametrize(
    ("lora", "budget"),
    [(None, 0), ({"r": 4, "lora_alpha": 32}, 700)],
    ids=["all weights in one pass", "lora in some passes"],
)
def test_the_losses_are_those_of_a_slow_reference(tmp_path, lora, budget):
    """Both steps: at the first policy and reference are one, at the second they are not."""
    rows = pair_rows()
    model = tiny_model()
    start = copy.deepcopy(model)
    trainer = AgentDPOTrainer(
        model, textcraft_tokenizer(), rows, settings(tmp_path, lora, budget), tmp_path
    )
    margins: list[list[float]] = []

    class Slowly(TrainerCallback):
        """The margins after each step, by the present weights."""

        def on_step_end(self, args, state, control, **_):
            trainer.model.eval()
            margins.append([slow_margin(trainer.model, start, row) for row in rows])
            trainer.model.train()

    trainer.add_callback(Slowly())
    trainer.train()
    log = [row for row in trainer.state.log_history if "loss" in row]
    assert log[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    moved = margins[0]
    assert max(map(abs, moved)) > 0.1, "the step moved the policy"
    expected = sum(math.log1p(math.exp(-margin)) for margin in moved) / len(rows)
    assert log[1]["loss"] == pytest.approx(expected, abs=1e-5)
    assert log[1]["rewards/margins"] == pytest.approx(sum(moved) / len(rows), abs=1e-4)
    assert log[1]["rewards/accuracies"] == pytest.approx(sum(m > 0 for m in moved) / len(rows))


def test_passes_do_not_change_the_weights(tmp_path):
    found = []
    for budget in (0, 1):
        model = tiny_model()
        trainer = AgentDPOTrainer(
            model, textcraft_tokenizer(), pair_rows(), settings(tmp_path, None, budget), tmp_path
        )
        trainer.train()
        found.append(list(model.parameters()))
    for weights in found[1:]:
        for weight, expected in zip(weights, found[0], strict=True):
            assert torch.allclose(weight, expected, atol=1e-6)


def test_what_the_world_says_has_no_weight_in_the_loss(tmp_path):
    """Only the tokens of the policy are scored, by the policy and by the reference."""
    rows = pair_rows(tasks=("ladder",))
    trainer = AgentDPOTrainer(
        tiny_model(), textcraft_tokenizer(), rows, settings(tmp_path, None, 0), tmp_path
    )
    (batch,) = trainer.updates_of(0)
    (row,) = rows
    for number, side in enumerate(("chosen", "rejected")):
        mask = [*[0] * len(row["prompt_ids"]), *row[f"{side}_mask"]]
        assert batch.trained[number, : len(mask)].int().tolist() == mask
    scores = trainer.update.scores(trainer.model, batch)
    assert torch.equal(scores.logprobs != 0, batch.trained)
    assert torch.equal(batch.reference != 0, batch.trained)


def test_data_without_a_pair_and_cut_contexts_are_refused(tmp_path):
    with pytest.raises(BadRequest, match="there is no pair to learn from"):
        AgentDPOTrainer(
            tiny_model(), textcraft_tokenizer(), [], settings(tmp_path, None, 0), tmp_path
        )
    (pair,) = make_pairs([demonstration("ladder"), failed("ladder")])
    with pytest.raises(BadRequest, match="this agent divides their context into several rows"):
        pair_row(pair, EpisodeTokenizer(textcraft_tokenizer(), PolicyConfig(agent="window:2")))


def settings(out, lora, budget) -> DPOConfig:
    return DPOConfig(
        model="tiny", data=["made here"], output_dir=str(out), pairs_per_step=len(TASKS), steps=2,
        learning_rate=0.002, beta=BETA, lora=lora, max_tokens_per_microbatch=budget,
        trainer_args={"optim": "sgd", "max_grad_norm": 0.0, "save_strategy": "no",
             "lr_scheduler_type": "constant"},
    )  # fmt: skip


def slow_margin(policy, reference, row) -> float:
    ratios = [
        said(policy, row, side) - said(reference, row, side) for side in ("chosen", "rejected")
    ]
    return BETA * (ratios[0] - ratios[1])


@torch.no_grad()
def said(model, row, side: str) -> float:
    """The log-probability of what the policy said, token by token."""
    ids = [*row["prompt_ids"], *row[f"{side}_ids"]]
    mask = [*[0] * len(row["prompt_ids"]), *row[f"{side}_mask"]]
    logprobs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    return sum(logprobs[at - 1, ids[at]].item() for at in range(1, len(ids)) if mask[at])
