"""Episodes whose context was cut: several rows, one episode to every algorithm and loss."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.training.batch import Rows, rollout_output, token_batch
from tests.train.small import tiny_model
from tests.train.test_trainer import LEARNING_RATE, TEMPERATURE, first_task, train_one_step

FILLER = 0


def row(mask, ends, first=10) -> Tokens:
    size = len(mask)
    ids = list(range(first, first + size))
    return Tokens([7], ids, mask, [-0.1 * i for i in range(size)], [0] * size, ends)


def episode(rows, rewards, outcome="success") -> Trajectory:
    return Trajectory(
        env="e", task="t", seed=0, instruction="", observation="o",
        turns=[Turn("r", "a", "o", reward) for reward in rewards], outcome=outcome, policy="p",
        horizon=9, tokens=rows[0], further_rows=rows[1:],
    )  # fmt: skip


CUT = episode([row([1, 0, 1], [1, 3]), row([1, 1], [2], 20), row([1], [1], 30)], [0.1, 0.2, 0.3, 1])
WHOLE = episode([row([1, 1, 0, 1], [2, 4], 40)], [0.0, 1.0])
LOST = episode([row([1], [1])], [0.0], "engine_lost")


def test_rows_of_an_episode_follow_all_first_rows():
    rows = Rows.from_trajectories([CUT, LOST, WHOLE], FILLER)
    assert [r.completion_ids for r in rows.tokens] == [
        [10, 11, 12], [FILLER], [40, 41, 42, 43], [20, 21], [30],
    ]  # fmt: skip
    assert (rows.owner, rows.offset) == ([0, 1, 2, 0, 0], [0, 0, 0, 3, 5])
    output = rollout_output([CUT, LOST, WHOLE], FILLER)
    assert output["trajectory_reward"] == [pytest.approx(1.6), None, 1.0, None, None]
    found = rows.to_train(torch.device("cpu"))
    assert found.ids.tolist() == [
        [7, 10, 11, 12, 0], [FILLER] * 2 + [0] * 3, [7, 40, 41, 42, 43], [7, 20, 21, 0, 0],
        [7, 30, 0, 0, 0],
    ]  # fmt: skip
    assert found.lengths.tolist() == [4, 2, 5, 3, 2]
    assert found.trained.sum(1).tolist() == [2, 0, 3, 2, 1]


def test_algorithms_see_the_rows_of_an_episode_as_one():
    rows = Rows.from_trajectories([CUT, WHOLE], FILLER)
    batch = token_batch([CUT, WHOLE], 2, rows.width, FILLER)
    assert batch.loss_mask.tolist() == [[1, 0, 1, 1, 1, 1], [1, 1, 0, 1, 0, 0]]
    assert batch.turn_ends.tolist() == [[1, 3, 5, 6], [2, 4, 0, 0]]
    assert batch.logprobs[0].tolist() == pytest.approx([0, -0.1, -0.2, 0, -0.1, 0])


def test_values_go_from_episodes_to_rows_and_back():
    rows = Rows.from_trajectories([CUT, WHOLE], FILLER)
    values = torch.tensor([[1.0, 2, 3, 4, 5, 6], [7, 8, 9, 10, 0, 0]])  # (B, V)
    in_rows = rows.to_rows(values, rows.to_train(torch.device("cpu")).ids)  # (R, W)
    assert in_rows.tolist() == [
        [0, 1, 2, 3, 0], [0, 7, 8, 9, 10], [0, 4, 5, 0, 0], [0, 6, 0, 0, 0],
    ]  # fmt: skip
    assert torch.equal(rows.to_episodes(in_rows), values)
    assert rows.episode_tokens().tolist() == [5, 3, 5, 5]


def test_rows_whose_prompts_differ_in_length_go_back_to_their_episodes():
    long = episode([Tokens([1, 2, 3], [4, 5], [1, 1], [0.0] * 2, [0] * 2, [2])], [1.0])
    rows = Rows.from_trajectories([WHOLE, long], FILLER)
    values = torch.tensor([[7.0, 8, 9, 10], [1, 2, 0, 0]])
    in_rows = rows.to_rows(values, rows.to_train(torch.device("cpu")).ids)
    assert in_rows.tolist() == [[0, 7, 8, 9, 10], [0, 0, 0, 1, 2]]
    assert torch.equal(rows.to_episodes(in_rows), values)


def reference(before, trajectories, average, length):
    """The gradient in plain torch: a sum over all rows of an episode, averaged as the loss says."""
    model = tiny_model()
    model.load_state_dict(before, strict=False)  # lm_head is tied
    returns = torch.tensor([t.reward for t in trajectories])
    advantages = returns - returns.mean()
    if average != "dr_grpo":
        advantages = advantages / (returns.std() + 1e-4)
    total, count = 0.0, sum(sum(r.loss_mask) for t in trajectories for r in t.rows)
    for trajectory, advantage in zip(trajectories, advantages, strict=True):
        own = sum(sum(r.loss_mask) for r in trajectory.rows)
        weight = {
            "token": 1 / count,
            "sequence": 1 / (own * len(trajectories)),
            "dr_grpo": 1 / (length * len(trajectories)),
        }[average]
        for tokens in trajectory.rows:
            ids = torch.tensor([tokens.prompt_ids + tokens.completion_ids])
            logits = model(ids).logits[0, len(tokens.prompt_ids) - 1 : -1] / TEMPERATURE
            chosen = torch.log_softmax(logits, -1).gather(1, ids[0, len(tokens.prompt_ids) :, None])
            ratio = (chosen - chosen.detach()).exp().squeeze(1)
            total = total - (ratio * torch.tensor(tokens.loss_mask) * advantage).sum() * weight
    total.backward()
    return {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("average", "changes"),
    [
        ("token", {}),
        ("token", {"max_tokens_per_microbatch": 1}),
        ("sequence", {"algorithm": {"type": "grpo", "average": "sequence"}}),
        (
            "sequence",
            {"algorithm": {"type": "grpo", "average": "sequence"}, "max_tokens_per_microbatch": 1},
        ),
        ("dr_grpo", {"algorithm": "dr_grpo"}),
    ],
    ids=lambda value: str(value),
)
def test_a_step_on_cut_contexts_has_the_gradient_of_the_plain_reference(tmp_path, average, changes):
    task = first_task()
    wrong = next(n for n in "123456" if n != task)
    calls: Counter[int] = Counter()

    def say(chat, prompt, turn):
        """Of four episodes side by side, one is solved at once and one in its fourth turn."""
        calls[turn] += 1
        solves = turn in (0, 3) and calls[turn] == 1
        return chat.response_ids(task if solves else wrong)

    trainer, before = train_one_step(
        tmp_path, say, agent="window:2", horizon=[5], max_tokens=512, **changes
    )
    played = trainer.trained_trajectories
    assert sorted(len(t.turns) for t in played) == [1, 4, 5, 5]
    assert sorted(len(t.rows) for t in played) == [1, 3, 4, 4]
    gradients = reference(before, played, average, 512)
    moved_at_all = 0.0
    for name, weight in trainer.model.named_parameters():
        moved = (before[name] - weight.detach()) / LEARNING_RATE
        assert torch.allclose(moved, gradients[name], atol=2e-5), name
        moved_at_all = max(moved_at_all, float(moved.abs().max()))
    assert moved_at_all > 1e-4
    assert trainer.state.log_history[0]["reward"] == pytest.approx(0.5)
