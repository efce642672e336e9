"""What the viewer's tests share: made-up runs, a served viewer, and a page that is watched."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

import cdp
from agentgym_env.run_store import RunStore
from agentgym_env.token_store import StoredTokens, pack_tokens, write_pieces
from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_viewer.server import make_app

ENVS = ("agentgym/TextCraft-v0", "tests/Guess-v0")
OUTCOMES = ("success", "failure", "horizon", "token_budget")
WORDS = ("craft", "get", "inventory", "oak", "planks", "stick", "iron", "red", "wool", "bed")
PIECES = ["<s>", "world", " says", "\n", "get", " oak", " planks", "<end>"]


def episode(number: int = 0, **changes: Any) -> Trajectory:
    """An episode of three turns whose texts name its number."""
    turns = [
        Turn(f"I try {k}", f"try {k}", f"answer {k} of {number}", float(k == 3), {"turn": k})
        for k in (1, 2, 3)
    ]
    values: dict[str, Any] = {
        "env": "tests/Guess-v0", "task": f"task-{number}", "seed": 2**63 + number,
        "instruction": "Guess.", "observation": f"begin {number}", "turns": turns,
        "outcome": "success", "policy": "m", "horizon": 5, "split": "train", "success": True,
        "score": 1.0, "step": 0, "group": 0,
    }  # fmt: skip
    return Trajectory(**(values | changes))


def made_up(count: int, seed: int = 0) -> Iterator[Trajectory]:
    """Episodes of many tasks, outcomes and lengths."""
    draw = random.Random(seed)
    for i in range(count):
        length, outcome = draw.randint(1, 6), draw.choice(OUTCOMES)
        turns = [
            Turn(
                " ".join(draw.choices(WORDS, k=5)),
                f"do {draw.choice(WORDS)}",
                " ".join(draw.choices(WORDS, k=20)),
                float(outcome == "success" and k == length - 1),
            )
            for k in range(length)
        ]
        yield Trajectory(
            env=draw.choice(ENVS), task=f"task-{draw.randrange(2000)}", seed=draw.getrandbits(63),
            instruction="", observation=" ".join(draw.choices(WORDS, k=30)), turns=turns,
            outcome=outcome, policy="m", horizon=6, split="train",
            category=draw.choice("abc"), success=outcome == "success", step=i // 64,
            group=i // 8 % 8,
        )  # fmt: skip


def small_run(path: Path) -> RunStore:
    """A run of two steps with two groups of two episodes each; the first has its tokens."""
    store = RunStore.create(
        path, {"config": {"env": "tests/Guess-v0", "algorithm": "grpo", "horizon": [3, 5]}}
    )
    for step in (0, 1):
        played = [
            episode(10 * step + i, task=f"task-{i // 2}", step=step, group=i // 2) for i in range(4)
        ]
        starts = store.append_trajectories("train", played)
        store.append_tokens("train", [StoredTokens(starts[0], [0.5, -0.5, 1.0], kept())])
        for start in starts[1:]:
            store.append_tokens("train", [StoredTokens(start, [-0.5, -0.5, -0.5])])
    failed = episode(1, turns=[Turn("I stop", "stop", "over")], outcome="failure", success=False)
    store.append_trajectories("eval_after", [failed])
    write_pieces(path / "tokens", PIECES)
    for step in range(1, 41):
        store.append_metrics(
            {
                "step": step, "seconds": 2.0, "reward": step / 40, "success": step / 50,
                "horizon": 3.0 + step // 20, "turns": 3.0, "env_steps": 60.0,
                "sampled_tokens": 500.0, "kl": 0.001 * step, "entropy": 1.0,
            }
        )  # fmt: skip
    return store


def kept() -> bytes:
    """Three sampled turns of two tokens, with the world's words between."""
    sampled, world = [4, 5], [1, 2, 3]
    ids = sampled + world + sampled + world + [4, 7]
    mask = [1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1]
    row = Tokens(
        prompt_ids=[0, 1, 2],
        completion_ids=ids,
        loss_mask=mask,
        logprobs=[-0.1 * (i + 1) * m for i, m in enumerate(mask)],
        versions=[m * (1 + i // 6) - (1 - m) for i, m in enumerate(mask)],
        turn_ends=[2, 7, 12],
    )
    return pack_tokens([row], [0.5, 0.5, 0, 0, 0, -0.5, -0.5, 0, 0, 0, 1.0, 1.0])


@asynccontextmanager
async def viewer(*runs: Path, index: Path) -> AsyncIterator[str]:
    """The address of a viewer over runs."""
    runner = web.AppRunner(make_app(runs, index), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await web.SockSite(runner, listener).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            await runner.cleanup()


@asynccontextmanager
async def watched(*runs: Path, index: Path) -> AsyncIterator[tuple[cdp.Page, str]]:
    """A tab and the viewer's address; at the end the tab must have complained of nothing and asked
    nobody else."""
    async with viewer(*runs, index=index) as address, cdp.chromium() as browser:
        page = await browser.page()
        yield page, address
        assert page.complaints == []
        others = [url for url in page.requests if not url.startswith((address, "data:"))]
        assert others == ["about:blank"] * len(others), others


def place(store: RunStore, number: int, file: str = "train") -> int:
    """The byte at which the n-th line of a file begins."""
    lines = (store.path / "trajectories" / f"{file}.jsonl").read_bytes().splitlines(keepends=True)
    return sum(map(len, lines[:number]))


def as_line(trajectory: Trajectory) -> bytes:
    """A trajectory as its file holds it."""
    return msgspec.json.encode(trajectory) + b"\n"
