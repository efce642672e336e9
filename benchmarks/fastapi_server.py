"""The design to beat: one FastAPI route per verb, synchronous handlers, one session a call.

    BASELINE_WORLD=textcraft uvicorn --app-dir benchmarks fastapi_server:app --port 8001

It serves worlds as AgentGym's servers serve theirs: pydantic bodies, handlers in the thread pool,
integer ids, a global table. TextCraft is the class that `agentgym serve textcraft` serves; BabyAI
and SciWorld step in the original's manner (original_manner.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from fastapi import FastAPI
from original_manner import BabyAIEachAnew, SciWorldWrapped
from pydantic import BaseModel

from agentgym_env.text_env import TextEnv
from agentgym_servers.worlds.textcraft.env import TextCraft

WORLDS: dict[str, Callable[[], TextEnv]] = {
    "textcraft": TextCraft, "babyai": BabyAIEachAnew, "sciworld": SciWorldWrapped,
}  # fmt: skip


class ResetBody(BaseModel):
    """Which session, and which episode."""

    id: int
    seed: int
    task: str


class StepBody(BaseModel):
    """Which session, and what to do."""

    id: int
    action: str


class Observed(BaseModel):
    """What a session is told."""

    id: int
    observation: str
    reward: float
    done: bool


app = FastAPI()
make_world = WORLDS[os.environ.get("BASELINE_WORLD", "textcraft")]
envs: dict[int, TextEnv] = {}
lock = threading.Lock()


@app.post("/create")
def create() -> int:
    """Open a session."""
    with lock:
        number = len(envs)
        envs[number] = make_world()
    return number


@app.post("/reset")
def reset(body: ResetBody) -> Observed:
    """Start an episode."""
    observation, _ = envs[body.id].reset(seed=body.seed, options={"task": body.task})
    return Observed(id=body.id, observation=observation, reward=0.0, done=False)


@app.post("/step")
def step(body: StepBody) -> Observed:
    """Take a turn."""
    observation, reward, done, _, _ = envs[body.id].step(body.action)
    return Observed(id=body.id, observation=observation, reward=reward, done=done)
