"""A model of 10,000 concurrent episodes on 100 nodes: where it saturates, and what a step costs.

    python benchmarks/capacity.py
    python benchmarks/capacity.py --episodes 10000 --worlds 60 --engines 40 --trainers 1

Episodes alternate between two queues, as in a real rollout: a turn is sampled by one of the
engines, then an environment server takes the step; between the two the trainer's event loop does
its part of the turn. The times come from measurements, which the constants name. Each engine
samples its turns in one running batch, whose speed depends on its size; each server's processor and
each trainer's event loop serve one request at a time.

`--measure` measures the trainer's part: the processor time per turn of this process, with the whole
rollout loop, a real environment server over HTTP, and an HTTP server that answers as vLLM does.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import multiprocessing
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from aiohttp import web

from agentgym_train.config.engines import ServerSettings
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.vllm.server import make_engine
from agentgym_train.models.loading import load_policy
from agentgym_train.rollout.chat import Chat
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.model_actors import model_actor
from agentgym_train.rollout.runner import RolloutRunner

TRAINER_S = 0.76e-3
"""Processor time of the trainer per turn: the rollout loop, the chat template, and both clients
(`benchmarks/capacity.py --measure`, one core that was shared)."""
WORLDS = {
    "textcraft": (55e-6, 1),
    "sciworld": (9e-3, 8),
    "webarena": (1e-3, 8),
}
"""Processor time of a step with its HTTP, and processes per node (benchmarks/README.md and the data
sheets: 18,000, 110 and 1,000 steps per second and core)."""
ALONE_TOKENS_S = 90.0
"""Tokens per second of one conversation on an engine alone, for a 7B model on one H100."""
FULL_TOKENS_S = 6000.0
"""Tokens per second of a full batch of the same engine. Assumptions, not measured here."""
NETWORK_S = 0.5e-3
"""Time of one call on the network, there and back."""


@dataclass
class Queue:
    """A server that does one thing at a time; the time of its work is given."""

    free_at: float = 0.0
    busy_s: float = 0.0

    def serve(self, now: float, work_s: float) -> float:
        """When work that arrives now is done."""
        self.free_at = max(self.free_at, now) + work_s
        self.busy_s += work_s
        return self.free_at


@dataclass
class Engine:
    """A running batch, whose members share its speed."""

    at: float = 0.0
    done: float = 0.0
    """Tokens that each member of the batch has been given since the beginning."""
    members: list[tuple[float, int]] = field(default_factory=list)
    """Heap of (value of `done` at which a turn is complete, episode)."""
    tokens: float = 0.0
    version: int = 0

    def speed(self) -> float:
        """Tokens per second of each member: a saturating curve of the batch size."""
        size = len(self.members)
        whole = FULL_TOKENS_S * size / (size + FULL_TOKENS_S / ALONE_TOKENS_S)
        return whole / size if size else 0.0

    def advance(self, now: float) -> None:
        """Sample until now."""
        passed = (now - self.at) * self.speed()
        self.done += passed
        self.tokens += passed * len(self.members)
        self.at = now

    def next_end(self) -> float:
        """When the next turn is complete."""
        return self.at + (self.members[0][0] - self.done) / self.speed() if self.members else 1e18


@dataclass
class Result:
    """What a simulation found."""

    turns_s: float
    turn_s: float
    turn_p95_s: float
    trainer: float
    worlds: float
    engine_batch: float
    wait_share: float
    """Share of a turn's time that is not sampling alone or the step itself."""


def simulate(
    world: str,
    *,
    episodes: int,
    worlds: int,
    engines: int,
    trainers: int,
    tokens: float = 120.0,
    seconds: float = 120.0,
    seed: int = 0,
) -> Result:
    """Play `seconds` of a steady state; the first quarter is not counted."""
    draws = random.Random(seed)
    step_s, processes = WORLDS[world]
    loops = [Queue() for _ in range(trainers)]
    servers = [Queue() for _ in range(worlds * processes)]
    running = [Engine() for _ in range(engines)]
    events: list[tuple[float, int, str, int]] = []
    began = [0.0] * episodes
    durations: list[float] = []
    number = ended = 0

    def push(at: float, kind: str, which: int) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (at, number, kind, which))

    def schedule(index: int) -> None:
        engine = running[index]
        engine.version += 1
        if engine.members:
            push(engine.next_end(), f"end {engine.version}", index)

    def settle(index: int, now: float) -> None:
        engine = running[index]
        engine.advance(now)
        while engine.members and engine.members[0][0] <= engine.done + 1e-6:
            _, episode = heapq.heappop(engine.members)
            push(loops[episode % trainers].serve(now, TRAINER_S / 2) + NETWORK_S, "step", episode)
        schedule(index)

    for episode in range(episodes):
        push(draws.uniform(0, 2.0), "turn", episode)
    warm = seconds / 4
    while events:
        now, _, kind, which = heapq.heappop(events)
        if now > seconds:
            break
        if kind == "turn":
            ended += now > warm
            if began[which] > warm:
                durations.append(now - began[which])
            began[which] = now
            ready = loops[which % trainers].serve(now, TRAINER_S / 2) + NETWORK_S
            push(ready, "sample", which)
        elif kind == "sample":
            index = which % engines
            engine = running[index]
            engine.advance(now)
            length = draws.lognormvariate(0, 0.6) * tokens / 1.197
            heapq.heappush(engine.members, (engine.done + length, which))
            schedule(index)
        elif kind == "step":
            work_s = step_s * draws.lognormvariate(0, 0.5) / 1.133
            push(servers[which % len(servers)].serve(now, work_s) + NETWORK_S, "turn", which)
        elif kind == f"end {running[which].version}":
            settle(which, now)
    counted = seconds - warm
    turn_s = fmean(durations) if durations else float("inf")
    alone = tokens / ALONE_TOKENS_S + step_s
    return Result(
        turns_s=ended / counted,
        turn_s=turn_s,
        turn_p95_s=quantiles(durations, n=20)[-1] if len(durations) > 20 else float("inf"),
        trainer=fmean(min(1.0, loop.busy_s / seconds) for loop in loops),
        worlds=fmean(min(1.0, server.busy_s / seconds) for server in servers),
        engine_batch=fmean(len(engine.members) for engine in running),
        wait_share=max(0.0, 1 - alone / turn_s),
    )


def measure(tokens: int, episodes: int = 1_000) -> None:
    """Print the processor time of this process per turn of so many tokens."""
    context = multiprocessing.get_context("spawn")
    port = context.Value("i", 0)
    answering = context.Process(target=answer_as_vllm, args=(port, tokens), daemon=True)
    answering.start()
    while not port.value:
        time.sleep(0.05)
    model = Path(__file__).parents[1] / "examples" / "train" / "textcraft" / "warm_policy"
    settings = ServerSettings(servers=[f"http://127.0.0.1:{port.value}"])
    with RolloutRunner("agentgym/TextCraft-v0", concurrency=256) as runner:
        loaded, tokenizer = load_policy(str(model))
        engine = make_engine(settings, loaded, pad_id=0, max_tokens=4_000, dtype=None)
        config = PolicyConfig(model="m", turn_max_tokens=tokens, max_tokens=4_000)
        actors = model_actor(engine, Chat(tokenizer), config)
        tasks = runner.tasks.splits["train"]
        starts = [EpisodeSpec(tasks[i % len(tasks)], i) for i in range(episodes)]
        runner.collect(actors, starts[:100], 20)
        began = time.process_time()
        played = runner.collect(actors, starts, 20)
        used = time.process_time() - began
        runner.run(engine.close())
    turns = sum(len(episode.turns) for episode in played)
    print(
        f"{used / turns * 1e3:.3f} ms of processor time per turn of {tokens} tokens ({turns} turns)"
    )
    answering.terminate()


def answer_as_vllm(port: Any, tokens: int) -> None:
    """Serve vLLM's routes that the engine calls, with one fixed turn."""
    ids = [5 + i % 8 for i in range(tokens)]

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m", "max_model_len": 4096}]})
        if request.path == "/server_info":
            modes = {"model_config": {"logprobs_mode": "processed_logprobs"}}
            return web.json_response({"vllm_config": modes})
        choice = {
            "token_ids": ids,
            "finish_reason": "stop",
            "logprobs": {"token_logprobs": [-0.5] * len(ids)},
        }
        return web.json_response({"choices": [choice]})

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.value = runner.addresses[0][1]
        await asyncio.Event().wait()

    asyncio.run(serve())


def main() -> None:
    """Print the table for each world."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--worlds", type=int, default=60, help="nodes with environment servers")
    parser.add_argument("--engines", type=int, default=40, help="nodes with one engine each")
    parser.add_argument("--trainers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 40])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--measure", action="store_true", help="measure the trainer's part only")
    parser.add_argument("--tokens", type=int, default=8, help="of a turn, for --measure")
    args = parser.parse_args()
    if args.measure:
        measure(args.tokens)
        return
    print(
        "| world | trainer processes | turns/s | turn, mean s | p95 s | trainer busy "
        "| worlds busy | turns per engine |\n|---|---:|---:|---:|---:|---:|---:|---:|"
    )
    for world in WORLDS:
        for trainers in args.trainers:
            found = simulate(
                world,
                episodes=args.episodes,
                worlds=args.worlds,
                engines=args.engines,
                trainers=trainers,
                seconds=args.seconds,
            )
            print(
                f"| {world} | {trainers} | {found.turns_s:,.0f} | {found.turn_s:.2f} | "
                f"{found.turn_p95_s:.2f} | {found.trainer:.2f} | {found.worlds:.2f} | "
                f"{found.engine_batch:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
