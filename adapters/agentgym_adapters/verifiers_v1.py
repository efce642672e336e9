"""Our environments in verifiers' v1: a taskset, and an environment whose agent plays by steps.

    eval agentgym-adapters --env.taskset.env agentgym/TextCraft-v0 --env.horizon 50 --no-push

The world is the player's user: it opens the conversation with the first observation and answers
each reply with the next. Lost episodes are errors, which verifiers and prime-rl leave out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import aiohttp

from agentgym_adapters.starts import starts_of
from agentgym_env.client.aio import AsyncEnvClient, AsyncSession
from agentgym_env.errors import MissingExtra
from agentgym_env.launch import LocalServer, local_server
from agentgym_env.reasoning import reply_of
from agentgym_env.server_token import NO_TOKEN
from agentgym_env.wire import StepReply

try:
    import verifiers.v1 as vf
    from pydantic import Field
    from verifiers.v1.dialects.chat import message_to_wire
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"verifiers' v1 needs {error.name}: pip install 'agentgym-sdk[verifiers]'"
    ) from error

_TIMEOUT_S = 300.0
_CONNECT_S = 10.0
_NOTHING = "(nothing)"


class AgentGymTasksetConfig(vf.TasksetConfig):
    """Which episodes there are, under `--env.taskset.*`."""

    env: str = "agentgym/TextCraft-v0"
    """Id of the environment."""
    split: str = "train"
    """Of its tasks."""
    tasks: int | None = None
    """Number of episodes; None takes each task of the split once."""
    seed: int = 0
    """Draws the order of the tasks and the seeds of their episodes."""
    server: list[str] = Field(default_factory=list)
    """Addresses of running servers; none starts a local one."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """The environment's own settings, for a local server."""


class AgentGymData(vf.TaskData):
    """The start of an episode; equal ones begin alike."""

    env_task: str = ""
    env_seed: int = 0


class AgentGymTask(vf.Task[AgentGymData]):
    """One start."""

    @property
    def key(self) -> str:
        """Task and seed."""
        return f"{self.data.env_task}/{self.data.env_seed}"


class AgentGymTaskset(vf.Taskset[AgentGymTask, AgentGymTasksetConfig]):
    """The tasks of one split, with a seed for each."""

    def load(self) -> Iterable[AgentGymTask]:
        """Ask the environment for its tasks."""
        config = self.config
        starts = starts_of(
            config.env,
            config.split,
            config.tasks,
            config.seed,
            server=config.server or None,
            env_kwargs=config.env_kwargs,
        )
        for task, seed in starts.rows:
            data = AgentGymData(
                name=task, system_prompt=starts.instruction, env_task=task, env_seed=seed
            )
            yield AgentGymTask(data, config.task)


class AgentGymEnvConfig(vf.EnvConfig):
    """How an episode is played, under `--env.*`."""

    player: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    """The policy. It talks and runs nothing, so no sandbox is provisioned for it."""
    horizon: int | None = None
    """Maximum turns; None for no limit."""


class AgentGymEnv(vf.Env[AgentGymEnvConfig]):
    """One agent, `player`, that plays an episode turn by turn.

    The trace's reward is the sum of the world's; those of the turns are in its
    `info["agentgym"]`, and `success`, `score` and `truncated` are metrics.
    """

    async def start(self) -> None:
        """Connect to the servers, or start a local one."""
        config = self.taskset.config
        self._local: LocalServer | None = None
        self._client: AsyncEnvClient | None = None
        addresses = config.server
        if not addresses:
            self._local = await asyncio.to_thread(local_server, config.env, config.env_kwargs)
            addresses = [self._local.address]
        token = NO_TOKEN if self._local else None
        self._client = AsyncEnvClient(addresses, token=token, timeout_s=_TIMEOUT_S)

    async def stop(self) -> None:
        """Let go of them."""
        if self._client is not None:
            await self._client.close()
        if self._local is not None:
            await asyncio.to_thread(self._local.close)

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Play the episode; its session is closed whatever the end."""
        if self._client is None:
            raise RuntimeError("the environment plays within serving()")
        session = await self._client.open()
        try:
            began = await session.reset(seed=task.data.env_seed, task=task.data.env_task)
            async with agents.player.interaction(task) as talk:
                await self._play(session, talk, began.observation)
        finally:
            await session.close()

    async def _play(self, session: AsyncSession, talk: vf.Interaction, first: str) -> None:
        rewards: list[float] = []
        reply: StepReply | None = None
        told, over = first, False
        while not over:
            said = await talk.turn(told or _NOTHING)
            if said.terminated:
                # A limit of verifiers' own: turns or tokens.
                break
            reply = await session.step(reply_of(said.last_reply) or "")
            rewards.append(reply.reward)
            told = reply.observation
            over = reply.terminated or reply.truncated or len(rewards) == self.config.horizon
        ended = reply is not None and reply.terminated
        info = {} if reply is None else reply.info
        talk.trace.record_reward("reward", sum(rewards))
        talk.trace.record_metrics(
            {
                "success": float(bool(info.get("success"))),
                "score": float(info.get("score", 0.0)),
                "truncated": float(not ended),
            }
        )
        talk.trace.info["agentgym"] = {
            "rewards": rewards,
            "terminated": ended,
            "last_observation": told if rewards else "",
        }


class TurnHarness(vf.Harness[vf.HarnessConfig]):
    """One chat completion per turn, requested in this process: the player has no tools to run.

    verifiers' own `null` starts a program for each turn; `--env.player.harness.id null` takes it.
    """

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Ask for the reply to the conversation so far; verifiers records it on the way."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        asked = {"model": ctx.model, "messages": messages}
        headers = {"Authorization": f"Bearer {secret}"}
        # Sampling, and how long it may take, are verifiers': the request goes to it.
        timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_S)
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as http,
            http.post(f"{endpoint}/chat/completions", json=asked) as response,
        ):
            said = await response.text()
            return vf.ProgramResult(exit_code=int(not response.ok), stdout="", stderr=said)
