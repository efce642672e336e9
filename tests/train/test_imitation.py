"""Behaviour cloning learns the policy's turns, and only those."""

from __future__ import annotations

import random

import pytest
import torch

from agentgym_env.errors import BadRequest
from agentgym_env.trajectory import Trajectory, Turn
from agentgym_servers.textcraft import TextCraft
from agentgym_train.chat import Chat
from agentgym_train.imitation import IGNORED, Imitation, imitate, training_row
from tests.train.small import textcraft_tokenizer, tiny_model
from tests.train.templates import APPEND_ONLY, tokenizer_with


def demonstration(task="stick", seed=0) -> Trajectory:
    env = TextCraft()
    observation, _ = env.reset(seed=seed, options={"task": task})
    turns, ended = [], False
    while not ended:
        action = env.expert_action()
        answer, reward, ended, _, _ = env.step(action)
        turns.append(Turn(action, action, answer, reward))
    return Trajectory(
        env="agentgym/TextCraft-v0", task=task, seed=seed, instruction="",
        observation=observation, turns=turns, outcome="success", policy="expert", horizon=50,
    )  # fmt: skip


@pytest.mark.parametrize("name", APPEND_ONLY)
def test_labels_decode_to_the_responses_of_every_turn(name):
    tokenizer = tokenizer_with(APPEND_ONLY[name])
    chat = Chat(tokenizer, "Craft.")
    trajectory = demonstration()
    row = training_row(trajectory, chat)
    labels = [label for label in row["labels"] if label != IGNORED]
    end = tokenizer.convert_ids_to_tokens(chat.end_id)
    assert tokenizer.decode(labels) == "".join(turn.response + end for turn in trajectory.turns)
    for token, label in zip(row["input_ids"], row["labels"], strict=True):
        assert label in (IGNORED, token)


def test_turns_that_are_not_imitated_stay_in_place_without_loss():
    chat = Chat(textcraft_tokenizer())
    trajectory = demonstration("ladder")
    first = trajectory.turns[0]
    whole = training_row(trajectory, chat)
    part = training_row(trajectory, chat, lambda turn: turn is not first)
    assert part["input_ids"] == whole["input_ids"]
    left_out = sum(label != IGNORED for label in whole["labels"]) - sum(
        label != IGNORED for label in part["labels"]
    )
    assert left_out == len(chat.response_ids(first.response))


def test_fitting_to_demonstrations_lowers_their_loss_and_saves_the_policy(tmp_path):
    tokenizer, model = textcraft_tokenizer(), tiny_model()
    chat = Chat(tokenizer)
    tasks = random.Random(0).sample(list(TextCraft().tasks.split("train")), 8)
    rows = [training_row(demonstration(task), chat) for task in tasks]
    before = loss_of(model, rows)
    settings = Imitation(rows_per_step=4, epochs=10.0, warmup_steps=2)
    imitate(model, tokenizer, rows, settings, tmp_path)
    assert loss_of(model.eval(), rows) < 0.8 * before
    assert (tmp_path / "model.safetensors").is_file()


def test_no_demonstration_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="no demonstration to learn from"):
        imitate(tiny_model(), textcraft_tokenizer(), [], Imitation(), tmp_path)


@torch.no_grad()
def loss_of(model, rows) -> float:
    losses = [
        model(
            input_ids=torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])
        ).loss.item()
        for row in rows
    ]
    return sum(losses) / len(losses)
