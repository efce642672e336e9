"""The audit's episodes: they use the real rollout, engine, batch and trainer.

Half of the sampled episodes have truncated turns. Other episodes are scripted: they contain turns
that a model rarely samples, such as empty ones.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from torch import Tensor

from agentgym_env.client.aio import AsyncEnvClient
from agentgym_env.client.transports import AsyncInProcessTransport
from agentgym_env.errors import teaches
from agentgym_env.run_store import RunStore
from agentgym_env.text_env import TaskSet
from agentgym_env.trajectory import Trajectory
from agentgym_env.wire import EnvCard
from agentgym_train.audit.host import ENV_ID, AuditHost, observations
from agentgym_train.audit.rules import Drift
from agentgym_train.config.audit import AuditSettings
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.config.rl import RLConfig, RLLimits
from agentgym_train.engines.base import Generation, GenerationEngine, Sampling, ScriptedEngine
from agentgym_train.event_loop import run_async
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.episode import EpisodeActorFactory, EpisodeSpec
from agentgym_train.rollout.loop import Rollouts
from agentgym_train.rollout.policy import Policy
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.rollout.worlds import Worlds
from agentgym_train.training.batch import Rows
from agentgym_train.training.rl import RLTrainer

EPISODE: ContextVar[int] = ContextVar("EPISODE", default=-1)
"""Number of the current asyncio task's episode."""

_T = TypeVar("_T")

WRITTEN = 8
"""Number of scripted episodes."""

_CUT = 4
"""Maximum tokens per turn in episodes with truncated turns."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """An immutable record of one call to the engine."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    stop_ids: tuple[int, ...]
    max_tokens: int


@dataclass(slots=True)
class Record:
    """The exchanges of an episode's last attempt, in order."""

    conversation: Hashable | None = None
    exchanges: list[Exchange] = field(default_factory=list)


class Recorder:
    """A generation engine that delegates to another one and records its calls."""

    def __init__(self, engine: GenerationEngine) -> None:
        self._engine = engine
        self.records: dict[int, Record] = {}

    @property
    def is_exact(self) -> bool:
        """As the engine."""
        return self._engine.is_exact

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        conversation: Hashable | None = None,
    ) -> Generation:
        """Sample with the engine and record the call."""
        asked = tuple(prompt_ids)
        generation = await self._engine.generate(prompt_ids, sampling, conversation)
        record = self.records.setdefault(EPISODE.get(), Record())
        if record.conversation is not conversation:
            # The previous attempt was lost.
            record.conversation = conversation
            record.exchanges.clear()
        record.exchanges.append(
            Exchange(
                asked,
                tuple(generation.token_ids),
                tuple(generation.logprobs),
                generation.finish_reason,
                sampling.stop_ids,
                sampling.max_tokens,
            )
        )
        return generation

    async def forget(self, conversation: Hashable) -> None:
        """Delegate to the engine."""
        await self._engine.forget(conversation)

    async def update_weights(self, model: Any, version: int) -> None:
        """Delegate to the engine."""
        await self._engine.update_weights(model, version)

    def keep_own_weights(self) -> None:
        """Copy the weights, as the engine does."""
        self._engine.keep_own_weights()

    async def sleep(self) -> None:
        """Delegate to the engine."""
        await self._engine.sleep()

    async def close(self) -> None:
        """Delegate to the engine."""
        await self._engine.close()


@dataclass(frozen=True, slots=True)
class Row:
    """An episode in the trainer's batch, without padding, with the engine's calls."""

    name: str
    prompt_ids: list[int]
    completion_ids: list[int]
    loss_mask: list[int]
    engine_logprobs: list[float]
    """(T,) log-probabilities of the engine, as the trainer received them."""
    trainer_logprobs: list[float]
    """(T,) log-probabilities of the trainer; 0.0 at tokens that it does not score."""
    trajectory: Trajectory
    exchanges: Sequence[Exchange]
    sampled: bool
    """Whether the model sampled it; otherwise it is scripted."""

    @property
    def ids(self) -> list[int]:
        """Prompt and completion."""
        return self.prompt_ids + self.completion_ids


@dataclass(frozen=True, slots=True)
class Episodes:
    """All episodes, and their trainer."""

    rows: list[Row]
    trainer: RLTrainer
    group_size: int

    @property
    def sampled(self) -> list[Row]:
        """The rows that the model sampled."""
        return [row for row in self.rows if row.sampled]


class AuditRunner:
    """Replaces the trainer's `RolloutRunner`: runs episodes in this process, without a server."""

    env_id = ENV_ID

    def __init__(self, policy: Policy, settings: AuditSettings, control: Mapping[int, str]) -> None:
        self._host = AuditHost(observations(list(control.values())))
        self._count = settings.episodes + settings.episodes % 2
        names = [str(i) for i in range(self._count + WRITTEN)]
        self.tasks = TaskSet({"train": names})
        self.card = EnvCard(
            ENV_ID, policy.instruction, {"train": len(names)}, "train", 0, 0, False, tools=()
        )
        self._policy = policy
        self._settings = settings
        self.engine = Recorder(policy.engine)
        turns = written_turns(policy.chat, policy.tokenizer, policy.action_format.render)
        self.writer = Recorder(ScriptedEngine(_script(turns)))

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to completion."""
        return run_async(work)

    def is_sampled(self, number: int) -> bool:
        """Whether the model samples this episode."""
        return number < self._count

    def exchanges(self, number: int) -> Sequence[Exchange]:
        """The calls to the episode's engine."""
        engine = self.engine if self.is_sampled(number) else self.writer
        return engine.records[number].exchanges if number in engine.records else ()

    async def collecting(
        self,
        new_actor: EpisodeActorFactory,
        starts: Sequence[EpisodeSpec],
        horizon: int,
        *,
        step: int = -1,
        instruction: str = "",
        on_episode: Callable[[Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Run every start; trajectories are in the order of `starts`."""

        async def one(start: EpisodeSpec) -> Trajectory:
            EPISODE.set(int(start.task))
            client = AsyncEnvClient(AsyncInProcessTransport(self._host))
            rollouts = Rollouts(
                client, self._actors(int(start.task)), env_id=ENV_ID, instruction=instruction
            )
            (trajectory,) = await rollouts.collect(
                [start], horizon, step=step, on_episode=on_episode
            )
            return trajectory

        return await asyncio.gather(*map(one, starts))

    def _actors(self, number: int) -> EpisodeActorFactory:
        """The actor factory of an episode: sampled or scripted, truncated or not."""
        sampled = self.is_sampled(number)
        policy = replace(self._policy, engine=self.engine if sampled else self.writer)
        if number % 2 == 1:
            most = min(_CUT, policy.config.turn_max_tokens)
            policy = replace(policy, config=replace(policy.config, turn_max_tokens=most))
        if number == self._count:
            room = len(policy.chat.start(self._host.text(str(number), 0))) + 3 * _CUT
            most = min(room, policy.config.max_tokens)
            policy = replace(policy, config=replace(policy.config, max_tokens=most))
        return policy.actors(self._settings.temperature)


def written_turns(chat: Chat, tokenizer: Any, render: Any) -> list[list[int]]:
    """Token ids of turns that are edge cases for chat code."""
    plain = chat.response_ids(render("look around"))
    odd = chat.response_ids(render("craft é 雪 🙂🏽 مرحبا \u200d"))
    letters = [i for c in render("look") for i in tokenizer.encode(c, add_special_tokens=False)]
    other = [i for i in chat.stop_ids if i != chat.end_id]
    within = [i for i in tokenizer.all_special_ids if i not in chat.stop_ids][:2]
    return [
        [chat.end_id],
        odd,
        plain[:-1],
        [*letters, chat.end_id],
        [*plain[:2], *within, *plain[2:]],
        [*plain[:-1], *(other or [chat.end_id])[:1]],
        chat.response_ids(render("  spaced \n")),
        plain,
    ]


def play(policy: Policy, settings: AuditSettings, control: Mapping[int, str]) -> Episodes:
    """Run the episodes in a trainer and return the trainer's rows."""
    rollout_runner = AuditRunner(policy, settings, control)
    with tempfile.TemporaryDirectory(prefix="agentgym-audit-") as folder:
        config = _config(settings, policy.config.model, folder, len(rollout_runner.tasks.ids))
        store = RunStore.create(Path(folder) / "run", {})
        worlds = Worlds([cast(RolloutRunner, rollout_runner)])
        trainer = RLTrainer(policy, config, worlds, store)
        trainer.to_compare = False  # a rule does, and shows where
        names = iter(rollout_runner.tasks.ids)
        trainer.rollouts.specs = lambda group: [
            EpisodeSpec(task, group.number, group=group.number) for task in islice(names, 2)
        ]
        # As in training, where dropout is active.
        trainer.model.train()
        rows = trainer.play(0)
        scores = trainer.update.logprobs(rows.to_train(trainer.accelerator.device))  # (R, W)
    trajectories = trainer.trained_trajectories
    lost = [t for t in trajectories if not teaches(t.outcome)]
    if lost:
        raise Drift(
            f"{len(lost)} of {len(trajectories)} episodes were lost; first error: {lost[0].error}",
            "sampling from the model failed; try it with transformers alone",
        )
    found = _rows(rollout_runner, trajectories, rows, scores)
    return Episodes(found, trainer, config.num_generations)


def _rows(
    rollout_runner: AuditRunner, trajectories: Sequence[Trajectory], rows: Rows, scores: Tensor
) -> list[Row]:
    found = []
    for number, trajectory in enumerate(trajectories):
        row = rows.tokens[number]
        sampled = rollout_runner.is_sampled(number)
        first = len(row.prompt_ids)
        found.append(
            Row(
                name=f"{'sampled' if sampled else 'written'} episode {number}",
                prompt_ids=row.prompt_ids,
                completion_ids=row.completion_ids,
                loss_mask=row.loss_mask,
                engine_logprobs=row.logprobs,
                trainer_logprobs=scores[number, first : first + len(row.completion_ids)].tolist(),
                trajectory=trajectory,
                exchanges=rollout_runner.exchanges(number),
                sampled=sampled,
            )
        )
    return found


def _config(settings: AuditSettings, name: str, folder: str, episodes: int) -> RLConfig:
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
        prompts_per_step=episodes // 2,
        num_generations=2,
        steps=1,
        limits=RLLimits(max_lost_rate=1.0),
        trainer_args={**settings.trainer_args, "save_strategy": "no"},
    )


def _script(turns: Sequence[Sequence[int]]) -> Any:
    """A script in which each episode starts at a different turn."""

    def script(prompt_ids: Sequence[int], turn: int) -> Sequence[int]:
        return turns[(EPISODE.get() + turn) % len(turns)]

    return script
