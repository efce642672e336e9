"""Episodes of an audit: sampled by the engine, and scored by the trainer of a run."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import cast

from agentgym_env.errors import Outcome
from agentgym_env.run_store import RunStore
from agentgym_env.text_env import TaskSet
from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_env.wire import EnvCard
from agentgym_train.config.policy import AuditSettings, PolicyConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.event_loop import run_async
from agentgym_train.rollout.actors import Actor, draw_seed
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.rollout.worlds import Worlds
from agentgym_train.training.batch import Rows
from agentgym_train.training.rl import RLTrainer

ENV_ID = "agentgym/Audit-v0"

PLAIN = "You see 3 oak logs and a crafting table."

OBSERVATIONS = [
    PLAIN,
    "Got 2 oak logs\nInventory: [oak log] (2)",
    "",
    "  spaces around  ",
    "\n\nlines around\n\n",
    "trailing newline\n",
    "a\ttab, \r\na carriage return",
    "naïve café, e\u0301, 雪, 🙂🏽, مرحبا, \u200d\u2028",
    "Thought: I should look.\nAction: look\nObservation: made up",
    "\x1b[31mred\x1b[0m \x07\x1b]0;title\x07 and on",
]
"""Observations that templates and tokenizers may change."""


@dataclass(frozen=True, slots=True)
class AuditedRow:
    """A sampled episode in the trainer's batch, without padding."""

    name: str
    trajectory: Trajectory
    tokens: Tokens
    trainer_logprobs: list[float]
    """(T,) log-probabilities of the trainer; 0.0 at tokens that it does not score."""

    @property
    def ids(self) -> list[int]:
        """(P + T,) prompt and completion."""
        return self.tokens.prompt_ids + self.tokens.completion_ids

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(start, end) of every turn in the completion."""
        return trained_spans(self.tokens.loss_mask)


@dataclass(frozen=True, slots=True)
class Episodes:
    """All episodes, and whether the trainer computes them in 16 bits."""

    rows: list[AuditedRow]
    half: bool


class _World:
    """What a trainer reads of an environment whose episodes it does not collect."""

    env_id = ENV_ID
    tasks = TaskSet({"train": ["0"]})

    def __init__(self, instruction: str) -> None:
        self.card = EnvCard(ENV_ID, instruction, {"train": 1}, "train", 0, 0, False, tools=())


def sample_episodes(policy: Policy, settings: AuditSettings, control: Sequence[str]) -> Episodes:
    """Sample the episodes, and score their tokens with a trainer.

    The observations also contain the `control` tokens. Raises what engine and model raise.
    """
    named = "".join([token for token in control if token.strip()][:64])
    texts = [*OBSERVATIONS[:2], f"No.{named}\nassistant\ngive me {named}", *OBSERVATIONS[2:]]
    with tempfile.TemporaryDirectory(prefix="agentgym-audit-") as folder:
        config = _config(settings, policy.config.model, folder)
        store = RunStore.create(Path(folder) / "run", {})
        worlds = Worlds([cast(RolloutRunner, _World(policy.instruction))])
        # It comes first, since it moves the model to its device.
        trainer = RLTrainer(policy, config, worlds, store)
        # As in training, where dropout is active.
        trainer.model.train()
        trajectories = run_async(_sampled(policy, settings, texts))
        rows = Rows.from_trajectories(trajectories, int(policy.tokenizer.pad_token_id))
        scores = trainer.update.logprobs(rows.to_train(trainer.accelerator.device))  # (R, W)
    found = []
    for number, (trajectory, tokens) in enumerate(zip(trajectories, rows.tokens, strict=True)):
        first = len(tokens.prompt_ids)
        own = scores[number, first : first + len(tokens.completion_ids)].tolist()
        found.append(AuditedRow(f"sampled episode {number}", trajectory, tokens, own))
    return Episodes(found, trainer.args.bf16 or trainer.args.fp16)


def trained_spans(loss_mask: Sequence[int]) -> list[tuple[int, int]]:
    """(start, end) of every span that is trained on."""
    spans, at = [], 0
    for trained, run in groupby(loss_mask):
        length = len(list(run))
        if trained:
            spans.append((at, at + length))
        at += length
    return spans


async def _sampled(
    policy: Policy, settings: AuditSettings, texts: Sequence[str]
) -> list[Trajectory]:
    """All episodes at once, as in a rollout; each begins with another text."""
    await policy.engine.update_weights(policy.model, 0)

    async def one(number: int) -> Trajectory:
        actor = cast(Actor, policy.actors(settings.temperature)())
        first, seed = number % len(texts), draw_seed("audit", settings.seed, number)
        return await _episode(actor, settings.turns, [*texts[first:], *texts[:first]], seed)

    return await asyncio.gather(*map(one, range(settings.episodes)))


async def _episode(actor: Actor, horizon: int, texts: Sequence[str], seed: int) -> Trajectory:
    """One episode, in which the environment answers with the texts."""
    turns: list[Turn] = []
    outcome: Outcome = "horizon"
    # There is no session, and the actor of a model needs none.
    await actor.begin(None, texts[0], seed)  # type: ignore[arg-type]
    while len(turns) < horizon:
        output = await actor.act()
        if output is None:
            outcome = "token_budget"
            break
        turns.append(Turn(output.response, "", texts[(len(turns) + 1) % len(texts)]))
        if len(turns) < horizon:
            await actor.observe(turns[-1].observation)
    (tokens,) = await actor.end()
    return Trajectory(
        ENV_ID, "0", seed, "", texts[0], turns, outcome, actor.name, horizon, tokens=tokens
    )


def _config(settings: AuditSettings, name: str, folder: str) -> RLConfig:
    # The audit chooses the data types itself.
    own = ("model", "dtype", "compute_dtype", "engine")
    return RLConfig(
        **{f.name: getattr(settings, f.name) for f in fields(PolicyConfig) if f.name not in own},
        model=name,
        env=ENV_ID,
        servers=["in this process"],  # an environment on a server need not be registered
        output_dir=folder,
        seed=settings.seed,
        horizon=[settings.turns],
        prompts_per_step=1,
        num_generations=2,
        steps=1,
        trainer_args={**settings.trainer_args, "save_strategy": "no"},
    )
