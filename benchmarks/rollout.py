"""Rollouts beside lockstep: wall time of 64 episodes of 2 to 30 turns, and how far from the bound.

    python benchmarks/rollout.py
    OMP_NUM_THREADS=1 python benchmarks/rollout.py --engine tiny

Each turn's generation and each environment step take a log-normal time, drawn beforehand from one
seed. Ours is run for real: the whole turn loop with a chat, a client and a host, where the engine
and the world wait instead of computing. The others are computed from the same draws, as if all but
the waiting cost nothing:

- TRL: each round generates for all live episodes at once, waits for the slowest, and then steps
  their environments one after another.
- AgentGym-RL: the same, with a thread an environment. What it adds is left out: environments that
  are created one after another, and a sleep of a second in every round.
- The bound is the longest episode, or all work divided by how many episodes may be under way.

With `--engine tiny` turns are sampled by the transformers engine from a model of two layers, as
many tokens as the drawn time says at `--rate`, and only the environments wait. Lockstep then has
the same engine, its caches included, and its rounds are measured; its environments' times are added
from the draws. For the bound each episode's turns are sampled alone, with nothing else to compute.

`--clock processor` tells what an idle machine would take where this one is busy: computing counts
as processor time of all threads, as if one core did it, and where all wait, the clock leaps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym_env import TaskSet, TextEnv
from agentgym_env.client.aio import AsyncEnvClient
from agentgym_env.client.transports import Answer, AsyncInProcessTransport, Call
from agentgym_servers.host.inline_host import Host
from agentgym_servers.host.sessions import SessionTable
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import Generation, GenerationEngine, Sampling
from agentgym_train.engines.hf.engine import HFEngine
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.loop import Rollouts
from agentgym_train.rollout.model_actors import model_actor

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples.small_models import small_policy, small_tokenizer


@dataclass(frozen=True, slots=True)
class Turn:
    """How long the two halves of a turn take."""

    generation_s: float
    environment_s: float

    @property
    def seconds(self) -> float:
        """Both, one after the other."""
        return self.generation_s + self.environment_s


Episodes = Sequence[Sequence[Turn]]


def drawn(episodes: int, generation_s: float, environment_s: float, seed: int) -> Episodes:
    """Episodes of 2 to 30 turns; the two times are medians."""
    draw = random.Random(seed)
    return [
        [
            Turn(
                generation_s * draw.lognormvariate(0, 0.6),
                environment_s * draw.lognormvariate(0, 1),
            )
            for _ in range(draw.randint(2, 30))
        ]
        for _ in range(episodes)
    ]


def bound_s(episodes: Episodes, concurrency: int) -> float:
    """No schedule is faster."""
    lengths = [sum(turn.seconds for turn in turns) for turns in episodes]
    return max(max(lengths), sum(lengths) / concurrency)


def lockstep_s(episodes: Episodes, concurrency: int, *, steps_in_turn: bool) -> float:
    """Rounds of all live episodes, in batches of `concurrency`, each waiting for its slowest."""
    total = 0.0
    for first in range(0, len(episodes), concurrency):
        batch = episodes[first : first + concurrency]
        for number in range(max(map(len, batch))):
            live = [turns[number] for turns in batch if number < len(turns)]
            steps = [turn.environment_s for turn in live]
            total += max(turn.generation_s for turn in live)
            total += sum(steps) if steps_in_turn else max(steps)
    return total


class ProcessorLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is processor time, and leaps to the next timer when all wait."""

    def __init__(self) -> None:
        self._leaped = 0.0
        self._computing = 0
        super().__init__()

    def time(self) -> float:
        """Seconds computed and leapt over."""
        return time.process_time() + self._leaped

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Know when a thread computes: then the clock does not leap."""
        self._computing += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._computed)
        return future

    def _computed(self, _: Any) -> None:
        self._computing -= 1

    def _run_once(self) -> None:
        if not self._ready and self._scheduled and not self._computing:
            self._leaped += max(0.0, self._scheduled[0].when() - self.time())
        super()._run_once()


CLOCKS = {"wall": asyncio.SelectorEventLoop, "processor": ProcessorLoop}


class Timed(TextEnv):
    """Task i is episode i: it ends after that episode's turns and says how long each step takes."""

    instruction = ""
    episodes: Episodes = ()
    tasks = TaskSet({"train": [str(i) for i in range(64)]})

    def _reset(self, task: str) -> str:
        self._turns = iter(list(self.episodes[int(task)]))
        self._left = len(self.episodes[int(task)])
        self._seconds = 0.0
        return f"episode {task}."

    def _step(self, action: str) -> tuple[str, float, bool]:
        self._seconds = next(self._turns).environment_s
        self._left -= 1
        return "go on", 0.0, not self._left

    def _info(self) -> dict[str, Any]:
        return {**super()._info(), "seconds": self._seconds}


class WaitingTransport(AsyncInProcessTransport):
    """Answers a call when the slowest of the steps in it would be done."""

    async def send(self, call: Call) -> Answer:
        """Wait, and answer."""
        clock = asyncio.get_running_loop().time
        began = clock()
        answer = await super().send(call)
        if call.path.startswith("/v1/step"):
            wait_s = max(item["info"]["seconds"] for item in json.loads(answer.body))
            await asyncio.sleep(began + wait_s - clock())
        return answer


class PlannedEngine:
    """Finds out which episode a conversation is, and takes its turns as they were drawn."""

    is_exact = True

    def __init__(self, episodes: Episodes, chat: Chat) -> None:
        self._episodes = episodes
        self._chat = chat
        self._words = chat.response_ids("go on")
        self._turns: dict[Hashable | None, Any] = {}

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, conversation: Hashable | None = None
    ) -> Generation:
        """Take the conversation's next turn."""
        began = asyncio.get_running_loop().time()
        if conversation not in self._turns:
            found = re.search(r"episode\s*(\d+)", self._chat.text_of(prompt_ids).replace(" ", ""))
            assert found
            self._turns[conversation] = iter(self._episodes[int(found[1])])
        return await self.take(next(self._turns[conversation]), began, prompt_ids, conversation)

    async def take(
        self, turn: Turn, began: float, prompt_ids: Sequence[int], conversation: Hashable | None
    ) -> Generation:
        """Take the turn's time to say a few words."""
        await asyncio.sleep(began + turn.generation_s - asyncio.get_running_loop().time())
        return Generation(list(self._words), [0.0] * len(self._words), "stop", 0)

    async def forget(self, conversation: Hashable) -> None:
        """Nothing is kept."""

    async def update_weights(self, model: Any, version: int) -> None:
        """There are none."""


class TinyEngine(PlannedEngine):
    """Samples as many tokens as the turn's time says."""

    def __init__(self, episodes: Episodes, chat: Chat, engine: GenerationEngine, rate: float):
        super().__init__(episodes, chat)
        self._engine = engine
        self._rate = rate

    async def take(
        self, turn: Turn, began: float, prompt_ids: Sequence[int], conversation: Hashable | None
    ) -> Generation:
        """Sample that many."""
        sampling = Sampling(max(1, round(turn.generation_s * self._rate)))
        return await self._engine.generate(prompt_ids, sampling, conversation)

    async def forget(self, conversation: Hashable) -> None:
        """Nor does the engine keep its cache."""
        await self._engine.forget(conversation)


MakeEngine = Callable[[Episodes, Chat], PlannedEngine]


def tokenizer_for(episodes: int) -> Any:
    """A tokenizer of what is said here."""
    texts = ["user assistant system go on", *(f"episode {i}." for i in range(episodes))]
    return small_tokenizer(texts, 400)


async def ours_s(
    episodes: Episodes, concurrency: int, make_engine: MakeEngine = PlannedEngine
) -> float:
    """The real turn loop."""
    Timed.episodes = episodes
    Timed.tasks = TaskSet({"train": [str(i) for i in range(len(episodes))]})
    chat = Chat(tokenizer_for(len(episodes)))
    actors = model_actor(
        make_engine(episodes, chat),
        chat,
        PolicyConfig(model="planned", turn_max_tokens=64, max_tokens=100_000),
    )
    host = Host(SessionTable(Timed, env_id="benchmarks/Timed-v0"), token=None)
    client = AsyncEnvClient(WaitingTransport(host))
    rollouts = Rollouts(client, actors, env_id="benchmarks/Timed-v0", concurrency=concurrency)
    starts = [EpisodeSpec(str(i), i) for i in range(len(episodes))]
    clock = asyncio.get_running_loop().time
    began = clock()
    played = await rollouts.collect(starts, 31)
    seconds = clock() - began
    assert [len(t.turns) for t in played] == [len(turns) for turns in episodes]
    return seconds


async def rounds_s(
    engine: GenerationEngine, episodes: Episodes, rate: float, steps_s: Callable[..., float]
) -> float:
    """Measured rounds of all episodes at once, and what `steps_s` makes of their steps' times."""
    clock = asyncio.get_running_loop().time
    contexts = [[5, 6, 7, number % 200 + 10, 8, 9] for number in range(len(episodes))]
    total = 0.0
    for number in range(max(map(len, episodes))):
        live = [i for i, turns in enumerate(episodes) if number < len(turns)]
        lengths = [max(1, round(episodes[i][number].generation_s * rate)) for i in live]
        began = clock()
        answers = await asyncio.gather(
            *(
                engine.generate(contexts[i], Sampling(length), i)
                for i, length in zip(live, lengths, strict=True)
            )
        )
        total += clock() - began
        total += steps_s([episodes[i][number].environment_s for i in live])
        for i, answer in zip(live, answers, strict=True):
            contexts[i] += [*answer.token_ids, 11, 12, 13, 14, 15, 16, 17, 18]
    for i in range(len(episodes)):
        await engine.forget(i)
    return total


async def tiny_s(
    engine: GenerationEngine, episodes: Episodes, concurrency: int, rate: float
) -> tuple[float, float, float, float]:
    """(bound, ours, lockstep with threads, TRL's loop) with one engine, one after the other."""
    alone = []
    for turns in episodes:
        alone.append(await rounds_s(engine, [turns], rate, sum))
    bound = max(max(alone), sum(alone) / concurrency)
    seconds = await ours_s(episodes, concurrency, lambda e, chat: TinyEngine(e, chat, engine, rate))
    lockstep = []
    for steps_s in (max, sum):
        batches = range(0, len(episodes), concurrency)
        rounds = [
            await rounds_s(engine, episodes[first : first + concurrency], rate, steps_s)
            for first in batches
        ]
        lockstep.append(sum(rounds))
    return bound, seconds, lockstep[0], lockstep[1]


async def simulated_s(episodes: Episodes, concurrency: int) -> tuple[float, float, float, float]:
    """(bound, ours, lockstep with threads, TRL's loop), where all but ours is computed."""
    threads, trl = (
        lockstep_s(episodes, concurrency, steps_in_turn=alone) for alone in (False, True)
    )
    seconds = await ours_s(episodes, concurrency)
    return bound_s(episodes, concurrency), seconds, threads, trl


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--generation", type=float, default=0.1, help="median seconds of a turn")
    parser.add_argument("--environment", type=float, default=0.05, help="median seconds of a step")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[64, 16])
    parser.add_argument("--engine", choices=["waiting", "tiny"], default="waiting")
    parser.add_argument("--rate", type=float, default=100.0, help="tiny: tokens a drawn second")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    args = parser.parse_args()
    tokenizer = tokenizer_for(args.episodes)
    model = small_policy(tokenizer, layers=2, hidden=64, heads=2).eval()
    print("| episodes at once | seed | bound s | ours s | of bound | threads s | TRL s | x ours |")
    print("|---|---|---|---|---|---|---|---|")
    for concurrency in args.concurrency:
        for seed in args.seeds:
            episodes = drawn(args.episodes, args.generation, args.environment, seed)
            if args.engine == "tiny":
                engine = HFEngine(model, tokenizer.pad_token_id)
                measured = tiny_s(engine, episodes, concurrency, args.rate)
            else:
                measured = simulated_s(episodes, concurrency)
            with asyncio.Runner(loop_factory=CLOCKS[args.clock]) as runner:
                bound, seconds, threads, trl = runner.run(measured)
            print(
                f"| {concurrency} | {seed} | {bound:.2f} | {seconds:.2f} | {seconds / bound:.2f} | "
                f"{threads:.1f} | {trl:.1f} | {threads / seconds:.1f}, {trl / seconds:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
