"""RemoteEnv: an environment behind a server, as an ordinary `gymnasium.Env`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint
from typing import Any, Final

import gymnasium

from agentgym_env.client.opening import CallLimits
from agentgym_env.client.sync import EnvClient, Session
from agentgym_env.client.transports import InProcessTransport
from agentgym_env.entry_points import CLIENTS, HOSTS, plugin
from agentgym_env.errors import BadRequest, CannotCopy, EnvironmentLost, EpisodeOver, MissingExtra
from agentgym_env.launch import LocalServer, local_server
from agentgym_env.registry import construct, env_class, env_class_with
from agentgym_env.server_token import NO_TOKEN
from agentgym_env.spaces import TextSpace
from agentgym_env.text_env import (
    TaskSet,
    TextEnv,
    check_options,
    check_render_mode,
    draw_episode_seed,
)
from agentgym_env.wire import EnvCard, ResetReply

INPROCESS = "inprocess"
_ENDING_S: Final = 1.0
_FOR_SERVERS: Final = ("timeout_s", "retries")
"""Arguments of `make_env` for the calls to a server."""


def make_env(
    env_id: str,
    server: str | Sequence[str] | None = None,
    *,
    token: str | None = None,
    render_mode: str | None = None,
    **kwargs: Any,
) -> gymnasium.Env[str, str]:
    """The entry point of `gymnasium.make`: a `RemoteEnv`, or the class itself for `"inprocess"`.

    An address with another scheme than HTTP, such as `ws://host:port`, is passed to the client
    registered for the scheme in the entry-point group `agentgym.clients`. `token` is for servers:
    see `RemoteEnv`.
    """
    if server == INPROCESS:
        _check_for_servers(env_id, kwargs)
        return construct(env_class_with(env_id, kwargs), kwargs, render_mode)
    client = _client_of(server)
    if client is not None:
        # AGENTGYM_TOKEN is for the servers of this project alone.
        given = {} if token is None else {"token": token}
        env: gymnasium.Env[str, str] = client.load()(
            env_id, server, render_mode=render_mode, **given, **kwargs
        )
        return env
    return RemoteEnv(env_id, server, token=token, render_mode=render_mode, **kwargs)


def _check_for_servers(env_id: str, options: Mapping[str, Any]) -> None:
    """Raise `BadRequest` for an option of servers that the environment itself lacks."""
    found = inspect.signature(env_class(env_id)).parameters
    for name in _FOR_SERVERS:
        if name in options and name not in found:
            raise BadRequest(f"{name} applies to servers only; leave it out for server='inprocess'")


class RemoteEnv(gymnasium.Env[str, str]):
    """One environment on a server; it behaves like the class that is served.

    `server` is an address, a list of them, or None for a local server that this process starts
    and shares. Further keyword arguments are the environment's own, for a local server.
    `token` is the bearer token that `server` requires (`agentgym serve --token-file`); None uses
    the environment variable `AGENTGYM_TOKEN`, and a local server needs none.
    `step` and `reset` raise `EnvironmentLost` if the server or the session is gone; a later
    `reset` opens another session, and starts another local server if that has ended.
    """

    metadata: dict[str, Any] = dict(TextEnv.metadata)  # noqa: RUF012

    def __init__(
        self,
        env_id: str,
        server: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        render_mode: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 3,
        **env_kwargs: Any,
    ) -> None:
        check_render_mode(render_mode, env_id)
        self.render_mode = render_mode
        self._session: Session | None = None
        self._observation = ""
        self._closed = False
        self._limits = CallLimits(timeout_s, retries)
        self._client, self._local = connect(
            env_id, server, env_kwargs, token=token, limits=self._limits
        )
        try:
            card = checked_card(self._client, env_id)
        except BaseException:
            self.close()
            raise
        self.instruction = card.instruction
        """The instruction for the policy, given before the first observation."""
        self.observation_space = TextSpace(card.observation_max_length)
        self.action_space = TextSpace(card.action_max_length)

    @cached_property
    def tasks(self) -> TaskSet:
        """The environment's tasks, in named splits."""
        return self._client.task_set()

    def __getstate__(self) -> dict[str, Any]:
        """Raise `CannotCopy`: the episode is in the server."""
        raise cannot_copy(self)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode. `options` may name `task` or `split`, as for `TextEnv.reset`."""
        super().reset(seed=seed)
        # The seed is always sent: a reset that is repeated on the way then changes nothing.
        episode_seed = draw_episode_seed(self.np_random) if seed is None else seed
        check_options(options)
        reply = self._reset(episode_seed, options or {})
        self._observation = reply.observation
        return reply.observation, reply.info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Apply one action; raises `EpisodeOver` outside an episode."""
        reply = self._episode().step(action)
        self._observation = reply.observation
        return (reply.observation, reply.reward, reply.terminated, reply.truncated, reply.info)

    def expert_action(self) -> str | None:
        """The oracle's action for this turn, None if it has none left; repeated calls are safe."""
        return self._episode().expert_action()

    def available_actions(self) -> list[str] | None:
        """The available actions of this turn; None if the environment does not list them."""
        return self._episode().available_actions()

    def render(self) -> Any:
        """The last observation."""
        return self._observation if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Close the session, and the local server if it is no longer used."""
        if self._closed:
            return
        self._closed = True
        if self._session is not None:
            self._session.close()
        self._client.close()
        if self._local is not None:
            self._local.close()

    def _episode(self) -> Session:
        if self._session is None:
            raise EpisodeOver("no episode was started; call reset() before step()")
        return self._session

    def _reset(self, seed: int, options: Mapping[str, Any]) -> ResetReply:
        task, split = options.get("task"), options.get("split")
        if self._closed:
            raise BadRequest("the environment is closed; make a new one")
        replaced = self._replace_server(0.0)
        kept = self._session is not None and not self._session.is_to_move
        if kept and not replaced and self._session and not self._session.state.is_lost:
            try:
                return self._session.reset(seed=seed, task=task, split=split)
            except EnvironmentLost as lost:
                # It expired, or its server ended. Nothing is lost: an episode begins here.
                self._session = None
                self._replace_server(wait_before_replacing(lost))
        if self._session is not None:
            self._session.close()
        for _ in range(self._limits.retries):
            self._session = self._client.open()
            try:
                return self._session.reset(seed=seed, task=task, split=split)
            except EnvironmentLost as lost:
                if lost.code != "unknown_session":  # the process that held it has ended
                    raise
        self._session = self._client.open()
        return self._session.reset(seed=seed, task=task, split=split)

    def _replace_server(self, wait_s: float) -> bool:
        """Start another local server, and connect to it, if the process has ended."""
        client = replaced_client(self._client, self._local, self._limits, wait_s)
        if client is None:
            return False
        self._client, self._session = client, None
        return True


def cannot_copy(env: object) -> CannotCopy:
    """The error of copying an environment that is served."""
    return CannotCopy(
        f"{type(env).__name__} cannot be copied or pickled: its episodes are in a server. Make it "
        "where it is used, or pass server='inprocess' to copy an environment with its episode"
    )


def replaced_client(
    client: EnvClient, local: LocalServer | None, limits: CallLimits, wait_s: float
) -> EnvClient | None:
    """The client of another local server if the process has ended; None if it runs.

    Closes `client`, whose sessions are gone with the server.
    """
    if local is None or not local.replace_ended(wait_s):
        return None
    client.close()
    return EnvClient(
        local.address, token=NO_TOKEN, timeout_s=limits.timeout_s, retries=limits.retries
    )


def wait_before_replacing(lost: EnvironmentLost) -> float:
    """Seconds to wait for the process of a server to end, after a failed call."""
    # A process that was killed closes its connections before it has ended.
    return _ENDING_S if lost.code in ("unreachable", "unanswered", "timeout") else 0.0


def connect(
    env_id: str,
    server: str | Sequence[str] | None,
    env_kwargs: Mapping[str, Any],
    *,
    token: str | None,
    limits: CallLimits,
) -> tuple[EnvClient, LocalServer | None]:
    """A client of the given servers, and the local server if one is needed."""
    timeout_s, retries = limits.timeout_s, limits.retries
    if server == INPROCESS:
        if limits != CallLimits():
            raise BadRequest(
                "timeout_s and retries apply to servers only; leave them out for server='inprocess'"
            )
        make = env_class_with(env_id, env_kwargs)
        return EnvClient(in_process(lambda: construct(make, env_kwargs), env_id)), None
    if server is None:
        local = local_server(env_id, env_kwargs)
        client = EnvClient(local.address, token=NO_TOKEN, timeout_s=timeout_s, retries=retries)
        return client, local
    if _client_of(server) is not None:
        raise BadRequest(
            f"{server} allows one step per call; make a vector of it with "
            "gymnasium.make_vec(..., vectorization_mode='sync')"
        )
    if env_kwargs:
        raise BadRequest(
            f"{sorted(env_kwargs)} are settings of the environment, and a running server has its "
            "own; start the server with them (agentgym serve --env-kwargs)"
        )
    return EnvClient(server, token=token, timeout_s=timeout_s, retries=retries), None


def in_process(make_env: Callable[[], TextEnv], env_id: str) -> InProcessTransport:
    """A transport to a host in this process, which serves what `make_env` makes.

    The host is the one registered as `inprocess` in the entry-point group `agentgym.hosts`.
    """
    host = plugin(HOSTS, INPROCESS)
    if host is None:
        raise MissingExtra("no in-process host is registered; reinstall agentgym-sdk")
    return InProcessTransport(host.load()(make_env, env_id))


def checked_card(client: EnvClient, env_id: str) -> EnvCard:
    """The description of the environment, which must be `env_id`."""
    card = client.card()
    if card.env != env_id:
        raise BadRequest(
            f"the server serves {card.env}, not {env_id}; use that id "
            "(gymnasium.make takes registered ones, agentgym_env.RemoteEnv any) or another server"
        )
    return card


def _client_of(server: str | Sequence[str] | None) -> EntryPoint | None:
    """The registered client of an address; None for an address of `RemoteEnv`."""
    scheme, separator, _ = server.partition("://") if isinstance(server, str) else ("", "", "")
    return plugin(CLIENTS, scheme) if separator and scheme not in ("http", "https") else None
