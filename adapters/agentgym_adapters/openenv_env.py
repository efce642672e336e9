"""Any OpenEnv server as an ordinary environment of ours.

`gymnasium.make("agentgym/OpenEnv-v0", server="ws://host:port")`. The action is a text: the one
text field of the server's action, or else a JSON object. The observation is the one text field of
the server's observation, or else JSON. Where the server's actions are calls of tools, so are ours:
`{"name": "...", "arguments": {...}}`. The horizon is Gymnasium's, or the trainer's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from agentgym_adapters.function_calls import FunctionCall, how_to_call, read_call
from agentgym_adapters.openenv_directory import OpenEnvDirectory
from agentgym_adapters.openenv_socket import OpenEnvSocket, Rejected
from agentgym_env.errors import BadRequest, EnvironmentFault, EnvironmentLost, EpisodeFailure
from agentgym_env.text_env import TaskSet, TextEnv

ENV_ID: Final = "agentgym/OpenEnv-v0"
STARTS: Final = 1000
TEST_STARTS: Final = 100


class OpenEnv(TextEnv):
    """An OpenEnv server at `address` (`ws://host:port`), one session of it.

    `action_field` and `observation_field` name the fields that carry the texts, where the server's
    schemas leave it open. Tasks are those of the server's task API. Where it has none, a task is a
    number that the server gets as its seed, whatever it makes of it: 1000 for training and 100
    others for tests. `token` is sent as a bearer token. A server that does not answer within
    `timeout_s` seconds is lost.
    """

    instruction = "Act in the environment that an OpenEnv server describes."
    tasks = TaskSet(
        {
            "train": [str(seed) for seed in range(STARTS)],
            "test": [str(seed) for seed in range(STARTS, STARTS + TEST_STARTS)],
        }
    )
    # Each step waits for another server.
    isolated = True
    can_copy = False

    def __init__(
        self,
        address: str = "",
        render_mode: str | None = None,
        *,
        action_field: str | None = None,
        observation_field: str | None = None,
        token: str | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        address = _checked(address)
        super().__init__(render_mode)
        directory = OpenEnvDirectory(address, token, timeout_s)
        self._action_field = action_field or directory.action_field()
        self._observation_field = observation_field or directory.observation_field()
        self._places = directory.places()
        self._tools = directory.tools()
        self._socket = OpenEnvSocket(address, token, timeout_s)
        self._cut = False
        self._solved: bool | None = None
        form = "" if self._action_field else directory.how_to_write_actions()
        if self._tools:
            form = how_to_call(self._tools)
        texts = filter(None, [directory.description(), form])
        self.instruction = "\n\n".join(texts) or OpenEnv.instruction  # type: ignore[misc]
        if self._places:
            splits: dict[str, list[str]] = {}
            for task, (split, _) in self._places.items():
                splits.setdefault(split, []).append(task)
            self.tasks = TaskSet(splits)  # type: ignore[misc]
            default = "train" if "train" in splits else next(iter(splits))
            self.default_split = default  # type: ignore[misc]

    def _reset(self, task: str) -> str:
        self._cut, self._solved = False, None
        start: dict[str, Any] = {"seed": self.episode_seed if self._places else int(task)}
        if self._places:
            start["split"], start["index"] = self._places[task]
        message = {"type": "reset", "data": start}
        try:
            result = self._ask(message)
        except EnvironmentLost:
            # The idle connection may have been closed. Retry: the episode starts here.
            result = self._ask(message)
        if result.get("done") is True:
            raise EnvironmentFault("the episode was over when it began", "environment_error")
        return self._text(result)

    def _step(self, action: str) -> tuple[str, float, bool]:
        data = self._read(action)
        if isinstance(data, str):
            return data, 0.0, False
        try:
            result = self._ask({"type": "step", "data": data})
        except Rejected as rejected:
            # What the policy wrote is not an action there; that is an observation.
            return str(rejected), 0.0, False
        reward, metadata = result.get("reward"), _metadata(result)
        if not isinstance(reward, int | float | None):
            raise self._socket.unexpected("reward", reward)
        self._cut = metadata.get("truncated") is True and metadata.get("terminated") is not True
        info = metadata.get("info")
        solved = info.get("success") if isinstance(info, dict) else None
        self._solved = solved if isinstance(solved, bool) else None
        return self._text(result), float(reward or 0.0), result.get("done") is True

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """As `TextEnv.step`; an end that the server calls a horizon's is `truncated`."""
        try:
            observation, reward, ended, _, info = super().step(action)
        except EpisodeFailure:
            self._over = True
            raise
        cut = ended and self._cut
        return observation, reward, ended and not cut, cut, info

    def success(self) -> bool:
        """The server's `success` (our servers send it), or the default of `TextEnv`."""
        return super().success() if self._solved is None else self._solved

    def available_actions(self) -> list[str] | None:
        """Those in the server's state, where it lists them."""
        state = self._socket.ask({"type": "state"}, "state")
        actions = state.get("available_actions")
        if isinstance(actions, list) and all(isinstance(action, str) for action in actions):
            return actions
        return None

    def close(self) -> None:
        """End the session on the server."""
        self._socket.close()

    def _ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._socket.ask(message, "observation")
        except Rejected as rejected:
            if message["type"] == "step":
                raise
            raise EnvironmentFault(str(rejected), "environment_error") from rejected

    def _read(self, action: str) -> dict[str, Any] | str:
        """The fields of an action, or what is wrong with it."""
        if self._tools:
            call = read_call(action)
            if isinstance(call, FunctionCall):
                called = {"tool_name": call.name, "arguments": call.arguments}
                return {"type": "call_tool", **called}
            return call or how_to_call(self._tools)
        if self._action_field:
            return {self._action_field: action}
        try:
            data = json.loads(action)
        except (ValueError, RecursionError) as error:
            return f"An action is a JSON object; this is no JSON: {error}."
        return data if isinstance(data, dict) else "An action is a JSON object, in braces."

    def _text(self, result: Mapping[str, Any]) -> str:
        observation = result.get("observation")
        if not isinstance(observation, dict):
            raise self._socket.unexpected("observation", observation)
        if self._observation_field:
            text = observation.get(self._observation_field)
            if not isinstance(text, str):
                raise self._socket.unexpected(self._observation_field, text)
            return text
        if self._tools and "tool_name" in observation:
            return _tool_text(observation)
        seen = {name: value for name, value in observation.items() if name != "metadata"}
        return json.dumps(seen, ensure_ascii=False)


def make_openenv(
    env_id: str, address: str, *, render_mode: str | None = None, **kwargs: Any
) -> OpenEnv:
    """The client of `ws://` and `wss://` addresses, for `gymnasium.make`."""
    if env_id != ENV_ID:
        raise BadRequest(f"an OpenEnv server ({address}) is {ENV_ID}, whatever it serves")
    return OpenEnv(address, render_mode, **kwargs)


def _metadata(result: Mapping[str, Any]) -> dict[str, Any]:
    """The observation's metadata, wherever this version of OpenEnv puts it."""
    inner = result.get("observation")
    metadata = result.get("metadata") or (
        inner.get("metadata") if isinstance(inner, dict) else None
    )
    return metadata if isinstance(metadata, dict) else {}


def _tool_text(observation: Mapping[str, Any]) -> str:
    """The result of a tool, or the error of the call."""
    failed, result = observation.get("error"), observation.get("result")
    if isinstance(failed, dict):
        return str(failed.get("message", failed))
    parts = result.get("content") if isinstance(result, dict) else None
    if isinstance(parts, list):
        return "\n".join(str(part.get("text", part)) for part in parts if isinstance(part, dict))
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _checked(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in ("ws", "wss") or not parts.netloc:
        raise BadRequest(
            f"an OpenEnv server address must look like ws://host:port, got {address!r}; give it as "
            "gymnasium.make('agentgym/OpenEnv-v0', server='ws://...')"
        )
    return address.rstrip("/")
