"""TrlRollout: our rollouts in TRL's own GRPOTrainer."""

from __future__ import annotations

from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

import hosting
from agentgym_env.errors import BadRequest
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import EngineLost, ScriptedEngine
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.horizon import make_horizon
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.training.step_metrics import TooManyLost
from agentgym_train.training.trl_rollout import TrlRollout, trajectory_reward
from tests.train.small import textcraft_tokenizer, tiny_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*rollout_func.*experimental"),
    pytest.mark.usefixtures("guess_server"),
]


def tiny_policy(engine=None, agent="plain") -> Policy:
    model, tokenizer = tiny_model(), textcraft_tokenizer()
    engine = engine or HFEngine(model, tokenizer.pad_token_id)
    chat = Chat(tokenizer)
    config = PolicyConfig(model="tiny", turn_max_tokens=8, max_tokens=512, agent=agent)
    return Policy(config, model, tokenizer, chat, engine, "")


def train(folder, policy: Policy, rollout: TrlRollout, steps: int = 3) -> GRPOTrainer:
    trainer = GRPOTrainer(
        model=policy.model,
        processing_class=policy.tokenizer,
        train_dataset=rollout.dataset(n=6),
        reward_funcs=[trajectory_reward],
        rollout_func=rollout,
        args=GRPOConfig(
            output_dir=str(folder), max_steps=steps, per_device_train_batch_size=8,
            num_generations=4, max_completion_length=512, learning_rate=1e-3, bf16=False,
            use_cpu=True, gradient_checkpointing=False, report_to="none", save_strategy="no",
            logging_steps=1, disable_tqdm=True,
        ),
    )  # fmt: skip
    trainer.train()
    return trainer


def guessing(policy_chat: Chat, lost=()) -> ScriptedEngine:
    """Its n-th episode guesses n; the attempts in `lost` fail."""
    started: list[int] = []

    def script(prompt, turn):
        if turn == 0:
            started.append(len(started))
            if len(started) - 1 in lost:
                raise EngineLost("unplugged")
        return policy_chat.response_ids(str(1 + (len(started) - 1) % 6))

    return ScriptedEngine(script)


def test_a_trainer_that_is_not_ours_trains_on_our_episodes(tmp_path):
    policy = tiny_policy(guessing(Chat(textcraft_tokenizer())))
    before = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
    with RolloutRunner(hosting.GUESS) as rollout_runner:
        rollout = TrlRollout(
            policy, rollout_runner, horizon=make_horizon({"turns": [1, 2], "every": 2})
        )
        trainer = train(tmp_path, policy, rollout)
    played = rollout.trajectories
    assert len(played) == 8 and {t.horizon for t in played} == {2}
    assert [t.group for t in played] == [0] * 4 + [1] * 4
    for group in (played[:4], played[4:]):
        assert len({(t.task, t.seed, t.observation) for t in group}) == 1
    rows = [row for row in trainer.state.log_history if "reward" in row]
    assert len(rows) == 3
    assert rows[-1]["reward"] == pytest.approx(fmean(t.reward for t in played))
    assert any(row["frac_reward_zero_std"] < 1 for row in rows), "no group had anything to teach"
    moved = [n for n, w in policy.model.named_parameters() if not torch.equal(w, before[n])]
    assert moved


def test_it_samples_from_the_trainers_own_model(tmp_path):
    policy = tiny_policy()
    with RolloutRunner(hosting.GUESS) as rollout_runner:
        rollout = TrlRollout(policy, rollout_runner, horizon=2)
        trainer = train(tmp_path, policy, rollout, steps=1)
    assert policy.engine.model is trainer.accelerator.unwrap_model(trainer.model)
    assert {len(t.turns) for t in rollout.trajectories} <= {1, 2}


def test_a_lost_episode_is_no_reward_and_too_many_stop_the_run():
    # Episode 0 is lost in all of its three attempts, of which the further ones come last.
    policy = tiny_policy(guessing(Chat(textcraft_tokenizer()), lost={0, 8, 9}))
    with RolloutRunner(hosting.GUESS) as rollout_runner:
        rollout = TrlRollout(policy, rollout_runner, horizon=1)
        output = rollout(rollout.dataset(n=2)["prompt"][:1] * 8, train_stub(policy))
        assert output["trajectory_reward"].count(None) == 1
        policy = tiny_policy(guessing(Chat(textcraft_tokenizer()), lost={0, 2, 3}))
        rollout = TrlRollout(policy, rollout_runner, horizon=1, max_lost_rate=0.4)
        with pytest.raises(TooManyLost):
            rollout(rollout.dataset(n=2)["prompt"], train_stub(policy))


def train_stub(policy: Policy) -> SimpleNamespace:
    """What of a trainer the rollout asks for."""
    accelerator = SimpleNamespace(unwrap_model=lambda model: model)
    return SimpleNamespace(
        state=SimpleNamespace(global_step=0), accelerator=accelerator, model=policy.model
    )


@pytest.mark.parametrize("prompt", ["Hello", '{"task": "3"}', "3", [{"role": "user"}]])
def test_a_prompt_that_names_no_start_is_refused_with_what_to_do(prompt):
    policy = tiny_policy(guessing(Chat(textcraft_tokenizer())))
    with RolloutRunner(hosting.GUESS) as rollout_runner:
        rollout = TrlRollout(policy, rollout_runner, horizon=1)
        with pytest.raises(BadRequest, match=r"does not specify an episode.*TrlRollout\.dataset"):
            rollout([prompt], train_stub(policy))


def test_an_agent_that_cuts_its_context_is_refused():
    chat = Chat(textcraft_tokenizer())
    policy = tiny_policy(ScriptedEngine(lambda prompt, turn: chat.response_ids("9")), "window:2")
    with RolloutRunner(hosting.GUESS) as rollout_runner:
        rollout = TrlRollout(policy, rollout_runner, horizon=4)
        with pytest.raises(BadRequest, match="resets the context"):
            rollout(rollout.dataset(n=1)["prompt"], train_stub(policy))
