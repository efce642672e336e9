"""The messages between client and server; knows nothing about transports.

Every POST route takes and returns a list: one item or thousands. An item that failed carries
`error` and nothing else of use. JSON by default, MessagePack on request.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from agentgym_env.text_env import MAX_SEED as MAX_SEED
from agentgym_env.tools import ACT, ToolSpec

PROTOCOL_VERSION: Final = 2
Turn = Annotated[int, Meta(ge=-(2**63), le=MAX_SEED)]
"""The number of a turn in a request; MessagePack has no longer integers to repeat it in a reply."""
Episode = Annotated[int, Meta(ge=0, le=MAX_SEED)]
"""The number of an episode of a session. A client counts its resets from 1."""
Key = Annotated[str, Meta(min_length=16, max_length=64, pattern=r"^[A-Za-z0-9_-]+$(?!\n)")]
"""A name that a client gives a session which it opens; random, so that nobody can guess it."""
SessionName = Annotated[str, Meta(max_length=128)]
"""The name of a session in a request; a server's own names are shorter."""
MAX_LEASE_S: Final = 86_400.0
"""The longest lease of a session."""
MAX_ITEMS: Final = 4096
"""Default maximum of items per call."""
JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"

ErrorCode = Literal[
    "bad_request",  # 400  malformed body, wrong type, unknown option
    "unauthorized",  # 401  no or wrong bearer token; the message says which
    "unknown_session",  # 404  never created, closed, or past its TTL or lease
    "unknown_route",  # 404
    "wrong_method",  # 405  the route takes another method
    "unknown_task",  # 404
    "unknown_split",  # 404
    "stale_turn",  # 409  neither the next turn nor the last one answered, or of another episode
    "episode_over",  # 409  step before reset or after the end
    "no_expert",  # 409  the environment has no oracle
    "unknown_host",  # 421  the Host header names no host of this server
    "foreign_origin",  # 403  a web page of another site
    "unsupported_media_type",  # 415  a body that is neither JSON nor MessagePack
    "too_large",  # 413  body above the server's limit
    "too_many_items",  # 413  more items in one call than the server accepts
    "too_many_sessions",  # 429  the server's session limit
    "environment_error",  # 500  the environment's own code failed
    "deadline",  # 504  a step outlasted its deadline
    "shutting_down",  # 503
]
STATUS: Final[dict[str, int]] = {
    "bad_request": 400,
    "unauthorized": 401,
    "unknown_session": 404,
    "unknown_route": 404,
    "wrong_method": 405,
    "unknown_task": 404,
    "unknown_split": 404,
    "stale_turn": 409,
    "episode_over": 409,
    "no_expert": 409,
    "unknown_host": 421,
    "foreign_origin": 403,
    "unsupported_media_type": 415,
    "too_large": 413,
    "too_many_items": 413,
    "too_many_sessions": 429,
    "environment_error": 500,
    "shutting_down": 503,
    "deadline": 504,
}


class WireError(Struct, frozen=True):
    """The error of one item, or of the whole call."""

    code: str
    message: str
    session: str | None = None


class CreateRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Open one session. `env`: the id to serve it from, when a server has several.

    `/v1/close` also takes the `key`, for a client that got no reply and so no name.
    """

    env: str | None = None
    key: Key | None = None


class CreateReply(Struct, frozen=True):
    """The new session's name."""

    session: str = ""
    error: WireError | UnsetType = UNSET


class ResetRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Start an episode in a session.

    With `episode`, which must be above the last one's number, the request can be repeated safely.
    """

    session: SessionName
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] | None = None
    task: str | None = None
    split: str | None = None
    episode: Episode | None = None


class ResetReply(Struct, frozen=True):
    """The first observation; its turn is 0. `episode` numbers the session's episodes."""

    session: str = ""
    turn: int = 0
    observation: str = ""
    info: dict[str, Any] = {}
    episode: int = 0
    error: WireError | UnsetType = UNSET


class StepRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The `turn`-th step of the episode, counted from 1. The last turn answered may be repeated.

    With `episode`, a request that arrives after the next reset is rejected.
    """

    session: SessionName
    turn: Turn
    action: str
    episode: Episode | None = None


class StepReply(Struct, frozen=True):
    """The result of the step. A repeated turn with the same action gets the stored reply."""

    session: str = ""
    turn: int = 0
    observation: str = ""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = {}
    error: WireError | UnsetType = UNSET


class SessionRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Names a session: for `/v1/close`, `/v1/expert` and `/v1/actions`."""

    session: SessionName


class RenewRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Renew the lease of a session: it ends if it is neither renewed nor used for `lease_s`.

    A session that was never renewed has no lease: it ends when it is idle past the server's TTL,
    which applies to leased ones too.
    """

    session: SessionName
    lease_s: Annotated[float, Meta(gt=0, le=MAX_LEASE_S)]


class RenewReply(Struct, frozen=True):
    """`renewed` is false if there is no such session."""

    session: str = ""
    renewed: bool = False


class CloseReply(Struct, frozen=True):
    """`closed` is false if there was no such session; closing twice has no effect."""

    session: str = ""
    closed: bool = False


class ExpertReply(Struct, frozen=True):
    """The oracle's action for the session's next turn; null when it has none left."""

    session: str = ""
    action: str | None = None
    error: WireError | UnsetType = UNSET
    thought: str = ""
    """Why, in words, if the oracle says so."""


class ActionsReply(Struct, frozen=True):
    """The available actions of the next turn; null if the environment does not list them."""

    session: str = ""
    actions: list[str] | None = None
    error: WireError | UnsetType = UNSET


class EnvCard(Struct, frozen=True):
    """`GET /v1/env`: the description of the environment."""

    env: str
    instruction: str
    splits: dict[str, int]
    default_split: str
    observation_max_length: int
    action_max_length: int
    has_expert: bool
    max_sessions: int = 16_384
    max_items: int = MAX_ITEMS
    """Maximum items of one call."""
    protocol: int = PROTOCOL_VERSION
    version: str = ""
    selections: dict[str, int] = {}
    """Further lists of tasks by name, which are used like splits; they may share tasks."""
    tools: tuple[ToolSpec, ...] = (ACT,)
    """Its actions as tools."""


class TaskList(Struct, frozen=True):
    """`GET /v1/tasks?split=`: the ids of one split or selection in order, and their categories."""

    split: str
    tasks: list[str]
    categories: dict[str, str] = {}
    aliases: dict[str, str] = {}
    """Alias -> one of the ids."""


class ErrorBody(Struct, frozen=True):
    """The body of a call that failed as a whole."""

    error: WireError


def encode(message: Any, content_type: str = JSON) -> bytes:
    """One message (a struct, or a list of them) as bytes; numpy values become plain ones."""
    packer = msgspec.msgpack if content_type == MSGPACK else msgspec.json
    body: bytes = packer.encode(message, enc_hook=_plain)
    return body


def decode(body: bytes, kind: Any, content_type: str = JSON) -> Any:
    """Bytes as `kind`; raises `msgspec.DecodeError` or its subclass `msgspec.ValidationError`."""
    return _decoder(kind, content_type).decode(body)


@cache
def _decoder(kind: Any, content_type: str) -> Any:
    packer = msgspec.msgpack if content_type == MSGPACK else msgspec.json
    return packer.Decoder(kind)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(
        f"{type(value).__name__} cannot be sent; use str, number, list or dict"
    )
