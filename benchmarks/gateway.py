"""The gateway's own time per model call: through HTTP, less the engine called directly.

    python benchmarks/gateway.py

The engine answers at once, and one client asks again and again on one connection, in the same
process; so the figure contains the client's half of the connection as well. The conversation grows
by two short messages per call, over episodes of ten calls.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

import aiohttp

from agentgym_gateway.server import Gateway
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.engines.base import Sampling, ScriptedEngine
from agentgym_train.models.loading import load_policy
from agentgym_train.rollout.chat import Chat

CALLS = 10
"""Calls of an episode."""


async def measured(tokenizer: Any, episodes: int) -> dict[str, float]:
    """Median milliseconds per call, through the gateway and without it."""
    chat = Chat(tokenizer)
    reply = chat.response_ids("get 2 oak logs")
    engine = ScriptedEngine(lambda prompt, turn: reply)
    config = PolicyConfig(model="benchmark", max_tokens=100_000)
    gateway = Gateway(engine, tokenizer, config, model="benchmark")
    await gateway.start()
    through, direct = [], []
    url = f"{gateway.base_url}/chat/completions"
    async with aiohttp.ClientSession() as http:
        for _ in range(episodes):
            episode = gateway.open_episode()
            headers = {"Authorization": f"Bearer {episode.key}"}
            messages = [{"role": "user", "content": "You see a tree. " * 20}]
            for _ in range(CALLS):
                began = time.perf_counter()
                body = {"model": "benchmark", "messages": messages}
                async with http.post(url, json=body, headers=headers) as response:
                    found = await response.json()
                through.append(time.perf_counter() - began)
                messages = [*messages, found["choices"][0]["message"]]
                messages.append({"role": "user", "content": "Got 2 oak logs."})
                began = time.perf_counter()
                await engine.generate(reply, Sampling(max_tokens=64), None)
                direct.append(time.perf_counter() - began)
            await gateway.close_episode(episode)
    await gateway.close()
    ordered = sorted(through)
    return {
        "calls": len(through),
        "gateway_ms": round(1000 * statistics.median(through), 3),
        "gateway_p95_ms": round(1000 * ordered[int(0.95 * len(ordered))], 3),
        "engine_ms": round(1000 * statistics.median(direct), 3),
        "overhead_ms": round(1000 * (statistics.median(through) - statistics.median(direct)), 3),
    }


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=100)
    args = parser.parse_args()
    _, tokenizer = load_policy("starter:textcraft/warm_policy")
    print(json.dumps(asyncio.run(measured(tokenizer, args.episodes))))


if __name__ == "__main__":
    main()
