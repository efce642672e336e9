"""The design to beat: one FastAPI route per verb, synchronous handlers, one session a call.

    uvicorn --app-dir benchmarks fastapi_server:app --port 8001

It serves the same TextCraft class as `agentgym serve textcraft`, as AgentGym's servers serve
theirs: pydantic bodies, handlers in the thread pool, integer ids, a global table.
"""

from __future__ import annotations

import threading

from fastapi import FastAPI
from pydantic import BaseModel

from agentgym_servers.textcraft import TextCraft


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
envs: dict[int, TextCraft] = {}
lock = threading.Lock()


@app.post("/create")
def create() -> int:
    """Open a session."""
    with lock:
        number = len(envs)
        envs[number] = TextCraft()
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
