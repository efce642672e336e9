"""The trainer against plain torch: one optimizer step on hand-made two-turn episodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer

import hosting
import worlds
from agentgym_env.run_store import RunStore
from agentgym_train.config.rl import RLConfig
from agentgym_train.engines.base import EngineLost, ScriptedEngine
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.samplers import TaskSource, UniformSampler
from agentgym_train.rollout.worlds import open_worlds
from agentgym_train.training.batch import rollout_output
from agentgym_train.training.rl import RLTrainer
from agentgym_train.training.step_metrics import TooManyLost
from agentgym_train.training.trl_rollout import trajectory_reward
from tests.train.small import textcraft_tokenizer, tiny_model

pytestmark = pytest.mark.usefixtures("guess_server")
TEMPERATURE = 0.7
LEARNING_RATE = 0.5


def first_task() -> str:
    """The task that the run's seed draws for step 0."""
    sampler = UniformSampler()
    tasks = dict.fromkeys(worlds.Guess.tasks.split("train"))
    sampler.begin([TaskSource(hosting.GUESS, 1.0, tasks)], RLConfig().seed)
    return sampler.next()[1]


def train_one_step(tmp_path, script, **changes):
    """(trainer after one step of plain gradient descent, the weights before it)."""
    config = RLConfig(
        model="tiny", env=hosting.GUESS, output_dir=str(tmp_path / "run"), horizon=[2],
        prompts_per_step=1, num_generations=4, steps=1, learning_rate=LEARNING_RATE,
        temperature=TEMPERATURE, instruction="", turn_max_tokens=8, max_tokens=512,
        compute_dtype="float32",
        trainer_args={"optim": "sgd", "max_grad_norm": 1e9, "save_strategy": "no"},
    )  # fmt: skip
    config = replace(config, **changes)
    model, tokenizer = tiny_model(), textcraft_tokenizer()
    chat = Chat(tokenizer)
    engine = ScriptedEngine(lambda prompt, turn: script(chat, list(prompt), turn))
    policy = Policy(config, model, tokenizer, chat, engine, "")
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    store = RunStore.create(tmp_path / "run", {})
    with open_worlds(config) as worlds:
        trainer = RLTrainer(policy, config, worlds, store)
        trainer.train()
    return trainer, before


def guesses(firsts, lost=()):
    """Episode i guesses `firsts[i]` first and 2 after that; the attempts in `lost` fail."""
    started = []

    def script(chat, prompt, turn):
        if turn == 0:
            started.append(len(started))
            if len(started) - 1 in lost:
                raise EngineLost("unplugged")
            return chat.response_ids(firsts[(len(started) - 1) % len(firsts)])
        return chat.response_ids("2")

    return script


def reference(before, episodes, returns, model):
    """GRPO's loss and gradient in plain torch."""
    model.load_state_dict(before, strict=False)  # lm_head is tied
    returns = torch.tensor(returns)
    advantages = (returns - returns.mean()) / (returns.std() + 1e-4)
    total, count = 0.0, sum(sum(e.loss_mask) for e in episodes)
    for tokens, advantage in zip(episodes, advantages, strict=True):
        ids = torch.tensor([tokens.prompt_ids + tokens.completion_ids])
        logits = model(ids).logits[0, len(tokens.prompt_ids) - 1 : -1] / TEMPERATURE
        chosen = torch.log_softmax(logits, -1).gather(1, ids[0, len(tokens.prompt_ids) :, None])
        ratio = (chosen - chosen.detach()).exp().squeeze(1)
        total = total - (ratio * torch.tensor(tokens.loss_mask) * advantage).sum()
    loss = total / count
    loss.backward()
    return loss.item(), {name: w.grad for name, w in model.named_parameters()}


def assert_step_is_the_reference(trainer, before, kept):
    played = [t for i, t in enumerate(trainer.trained_trajectories) if i in kept]
    assert len({t.reward for t in played}) == 2, "the group has something to learn from"
    loss, gradients = reference(
        before, [t.tokens for t in played], [t.reward for t in played], tiny_model()
    )
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, abs=1e-4)
    for name, weight in trainer.model.named_parameters():
        moved = (before[name] - weight.detach()) / LEARNING_RATE
        assert torch.allclose(moved, gradients[name], atol=2e-5), name


def test_a_step_moves_the_weights_by_the_gradient_of_the_plain_reference(tmp_path):
    task = first_task()
    wrong = next(n for n in "123456" if n not in (task, "2"))
    trainer, before = train_one_step(tmp_path, guesses([wrong, task, wrong, wrong]))
    assert [len(t.turns) for t in trainer.trained_trajectories] == [2, 1, 2, 2]
    assert_step_is_the_reference(trainer, before, {0, 1, 2, 3})


def test_a_step_trains_on_what_wrappers_make_of_rewards_and_observations(tmp_path):
    task = first_task()
    wrong = next(n for n in "123456" if n not in (task, "2"))
    wrappers = [
        "agentgym_env.wrappers:AvailableActions",
        # So small that GRPO's 1e-4 beside the standard deviation shows in the gradient.
        {"wrapper": "agentgym_env.wrappers:ScaleReward", "scale": 1e-3},
    ]
    script = guesses([wrong, task, wrong, wrong])
    trainer, before = train_one_step(tmp_path, script, wrappers=wrappers)
    played = trainer.trained_trajectories
    assert [t.reward for t in played] == [1e-3 if t.success else 0.0 for t in played]
    assert {t.success for t in played} == {True, False}
    assert_step_is_the_reference(trainer, before, {0, 1, 2, 3})
    listed = "Available actions:\n1\n2\n3"
    for episode in played:
        assert listed in episode.observation
        assert listed in textcraft_tokenizer().decode(episode.tokens.prompt_ids)
    longer = next(t for t in played if len(t.turns) == 2)
    assert listed in longer.turns[0].observation
    assert listed in textcraft_tokenizer().decode(longer.tokens.completion_ids)


@pytest.mark.slow
def test_a_step_in_several_passes_is_the_same_step(tmp_path):
    task = first_task()
    script = [next(n for n in "123456" if n not in (task, "2")), task, "9", "9"]
    whole, before = train_one_step(tmp_path / "whole", guesses(script))
    parts, _ = train_one_step(tmp_path / "parts", guesses(script), max_tokens_per_microbatch=1)
    for (name, one), two in zip(
        whole.model.named_parameters(), parts.model.parameters(), strict=True
    ):
        assert not torch.equal(one, before[name])
        assert torch.allclose(one, two, atol=1e-5), name


def test_a_lost_episode_leaves_the_step_as_if_it_had_not_been(tmp_path):
    task = first_task()
    wrong = next(n for n in "123456" if n not in (task, "2"))
    # Episode 3 is lost in all of its three attempts.
    script = guesses([wrong, task, wrong, wrong], lost={3, 4, 5})
    trainer, before = train_one_step(tmp_path, script)
    assert trainer.trained_trajectories[3].outcome == "engine_lost"
    assert_step_is_the_reference(trainer, before, {0, 1, 2})


def test_a_step_with_too_many_lost_episodes_stops_the_run_and_says_why(tmp_path):
    # Each of the four had three attempts; half of them may be lost.
    with pytest.raises(TooManyLost) as caught:
        train_one_step(tmp_path, guesses(["1"], lost=set(range(12))))
    said = str(caught.value)
    assert "4 of 4 episodes were lost at step 0 (4 engine_lost): a rate of 1.00" in said
    assert "above limits.max_lost_rate 0.5" in said
    assert "4 were retried, 8 times in total; none of the 4 is trained on" in said
    assert "EngineLost: unplugged" in said and "agentgym train --resume" in said


def test_lost_episodes_that_were_replaced_are_lost_all_the_same(tmp_path):
    # The first group is lost, in three attempts each; the one that replaces it is informative.
    script = guesses(list("123456"), lost=set(range(12)))
    with pytest.raises(TooManyLost, match="4 of 8 episodes were lost at step 0"):
        train_one_step(tmp_path, script, admission="informative", limits={"max_lost_rate": 0.4})


def test_a_step_that_loses_no_more_than_it_may_goes_on_and_counts_them(tmp_path):
    # Attempts 0..3 are the four episodes' first. Three are lost; of their second attempts, 4..6,
    # one comes back; the third attempts of the others, 7 and 8, are lost too.
    trainer, _ = train_one_step(tmp_path, guesses(["1"], lost={1, 2, 3, 5, 6, 7, 8}))
    row = trainer.state.log_history[0]
    outcomes = [t.outcome for t in trainer.trained_trajectories]
    assert outcomes.count("engine_lost") == row["lost"] == 2
    assert row["retried"] == sum(t.attempts > 1 for t in trainer.trained_trajectories) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*rollout_func.*experimental")
def test_a_step_on_single_turns_is_the_step_of_trls_own_trainer(tmp_path):
    task = first_task()
    wrong = next(n for n in "123456" if n not in (task, "2"))
    ours, before = train_one_step(tmp_path, guesses([wrong, task, "9", wrong]), horizon=[1])
    played = rollout_output(ours.trained_trajectories, pad_id=0)
    assert [len(t.turns) for t in ours.trained_trajectories] == [1, 1, 1, 1]
    theirs = GRPOTrainer(
        model=tiny_model(),
        processing_class=textcraft_tokenizer(),
        args=ours.args,
        train_dataset=Dataset.from_dict({"prompt": [""] * 4}),
        reward_funcs=[trajectory_reward],
        rollout_func=lambda prompts, trainer: dict(played),
    )
    theirs.train()
    losses = [trainer.state.log_history[0]["loss"] for trainer in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    for (name, one), two in zip(
        ours.model.named_parameters(), theirs.model.parameters(), strict=True
    ):
        assert not torch.equal(one, before[name])
        assert torch.allclose((one - two) / LEARNING_RATE, torch.zeros(()), atol=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 40])
def test_the_token_budget_of_a_pass_does_not_change_the_step(tmp_path, tokens):
    task = first_task()
    script = [next(n for n in "123456" if n not in (task, "2")), task, "9", "9"]
    whole, _ = train_one_step(tmp_path / "whole", guesses(script))
    parts, _ = train_one_step(tmp_path / "parts", guesses(script), max_tokens_per_microbatch=tokens)
    for (name, one), two in zip(
        whole.model.named_parameters(), parts.model.parameters(), strict=True
    ):
        assert torch.allclose(one, two, atol=1e-5), name
