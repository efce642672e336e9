"""Our environments in verifiers' v0: a `MultiTurnEnv`, for those who still use it (up to 0.3).

    vf.load_environment("agentgym-adapters", env="agentgym/TextCraft-v0", max_turns=50)

An episode that is lost is an `InfraError`, which verifiers records and does not score as a reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_adapters.starts import Starts, starts_of
from agentgym_env.client.aio import AsyncEnvClient
from agentgym_env.errors import EpisodeFailure, MissingExtra
from agentgym_env.launch import LocalServer, local_server
from agentgym_env.reasoning import reply_of
from agentgym_env.server_token import NO_TOKEN

try:
    import verifiers as vf
    from datasets import Dataset
    from verifiers import MultiTurnEnv
    from verifiers.types import Messages, State
except ImportError as error:
    raise MissingExtra(
        f"verifiers' v0 is in its versions up to 0.3 ({error}): pip install 'verifiers>=0.3,<0.4', "
        "or use v1 by `eval agentgym-adapters`"
    ) from error

_TIMEOUT_S = 300.0
_SESSION = "agentgym_session"


class AgentGymMultiTurnEnv(MultiTurnEnv):
    """Episodes of one environment on its servers, or on a local one."""

    def __init__(
        self,
        env: str,
        *,
        server: Sequence[str] = (),
        env_kwargs: Mapping[str, Any] | None = None,
        horizon: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._env = env
        self._env_kwargs = dict(env_kwargs or {})
        self._addresses = list(server)
        self._horizon = horizon
        self._local: LocalServer | None = None
        self._client: AsyncEnvClient | None = None
        self._playing = 0

    async def setup_state(self, state: State) -> State:
        """Begin the row's episode; the first observation closes the prompt."""
        self._playing += 1
        state["agentgym_rewards"] = []
        state["agentgym_info"] = {}
        try:
            session = await self._connected().open()
            state[_SESSION] = session
            start = state["info"]
            began = await session.reset(seed=int(start["env_seed"]), task=str(start["env_task"]))
        except EpisodeFailure as failure:
            raise vf.InfraError(str(failure)) from failure
        state["prompt"] = [*state["prompt"], vf.UserMessage(content=began.observation)]
        return state

    async def env_response(self, messages: Messages, state: State, **options: Any) -> Messages:
        """Take the policy's last reply as an action; its reward is the trajectory step's."""
        try:
            reply = await state[_SESSION].step(reply_of(_text_of(messages[-1])) or "")
        except EpisodeFailure as failure:
            raise vf.InfraError(str(failure)) from failure
        state["trajectory"][-1]["reward"] = reply.reward
        state["agentgym_rewards"].append(reply.reward)
        state["agentgym_info"] = reply.info
        answer: Messages = [vf.UserMessage(content=reply.observation)]
        spent = len(state["agentgym_rewards"]) == self._horizon
        if reply.terminated or reply.truncated or spent:
            state["is_truncated"] = not reply.terminated
            state["final_env_response"] = answer
        return answer

    @vf.cleanup
    async def close_session(self, state: State) -> None:
        """End the session; with the last of them go connections and the local server."""
        session = state.pop(_SESSION, None)
        if session is not None:
            await session.close()
        self._playing -= 1
        if self._playing == 0 and self._client is not None:
            # Connections belong to the loop they were made in, and verifiers may run another.
            await self._client.close()

    @vf.teardown
    async def close_server(self) -> None:
        """End the local server."""
        local, self._local, self._client = self._local, None, None
        if local is not None:
            local.close()

    def _connected(self) -> AsyncEnvClient:
        if self._client is None:
            addresses = self._addresses
            if not addresses:
                self._local = local_server(self._env, self._env_kwargs)
                addresses = [self._local.address]
            token = NO_TOKEN if self._local else None
            self._client = AsyncEnvClient(addresses, token=token, timeout_s=_TIMEOUT_S)
        return self._client


def load_environment(
    env: str = "agentgym/TextCraft-v0",
    *,
    split: str = "train",
    eval_split: str = "test",
    n: int | None = None,
    seed: int = 0,
    server: Sequence[str] = (),
    env_kwargs: Mapping[str, Any] | None = None,
    max_turns: int | None = None,
    **options: Any,
) -> AgentGymMultiTurnEnv:
    """The entry point of verifiers: `n` episodes per split, of at most `max_turns` turns."""

    def dataset(name: str) -> Dataset:
        starts = starts_of(env, name, n, seed, server=list(server) or None, env_kwargs=env_kwargs)
        return _dataset(starts)

    return AgentGymMultiTurnEnv(
        env,
        server=server,
        env_kwargs=env_kwargs,
        horizon=max_turns,
        dataset=lambda: dataset(split),
        eval_dataset=lambda: dataset(eval_split),
        rubric=_rubric(),
        **options,
    )


def _dataset(starts: Starts) -> Dataset:
    prompt = [{"role": "system", "content": starts.instruction}]
    return Dataset.from_list(
        [
            {"prompt": prompt, "answer": "", "info": {"env_task": task, "env_seed": seed}}
            for task, seed in starts.rows
        ]
    )


def _rubric() -> Any:
    rubric = vf.Rubric(funcs=[episode_return])
    rubric.add_metric(success)
    return rubric


def episode_return(state: State) -> float:
    """The sum of the world's rewards."""
    return float(sum(state["agentgym_rewards"]))


def success(state: State) -> float:
    """Whether the environment reports the task as solved."""
    return float(bool(state["agentgym_info"].get("success")))


def _text_of(message: Any) -> str:
    content = message["content"]
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(part["text"] for part in content if part.get("type") == "text")
