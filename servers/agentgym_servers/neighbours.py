"""`--protocol openenv`, `nemo-gym` and `mcp`: a server that speaks a neighbour's language.

What is said is the adapters' business. Here it is carried, past the same door and to the same
sessions as our own protocol.
"""

from __future__ import annotations

import importlib.util
from functools import partial

from agentgym_adapters.mcp_server import McpServer
from agentgym_adapters.nemo_gym_server import NemoGymServer
from agentgym_adapters.openenv_server import OpenEnvServer
from agentgym_adapters.served import HttpProtocol, Question
from agentgym_env.errors import BadRequest, MissingExtra
from agentgym_env.wire import JSON, encode
from agentgym_servers import routes
from agentgym_servers.app import App, HeadedAnswer, HttpCall, Service, answer_call, make_app
from agentgym_servers.compat_worlds import original_protocol
from agentgym_servers.desk import Answer
from agentgym_servers.metrics import count
from agentgym_servers.settings import OPENENV, OWN, ServeSettings
from agentgym_servers.single_calls import SingleCalls
from agentgym_servers.web_sockets import web_socket_app


def app_of(service: Service, settings: ServeSettings) -> App:
    """The application that speaks the protocol of the settings."""
    guard = settings.guard()
    if settings.protocol == OWN:
        return make_app(service, guard=guard)
    if settings.protocol == "agentgym":
        return make_app(
            service,
            original_protocol(service, settings.env_id, settings.session_ttl_s),
            guard=guard,
        )
    served = SingleCalls(service)
    if settings.protocol == OPENENV:
        openenv = OpenEnvServer(served)
        sockets = web_socket_app(service.desk, openenv.talk, settings.session_ttl_s, guard)
        return make_app(service, partial(_answer, service, openenv), sockets, guard)
    server_type = NemoGymServer if settings.protocol == "nemo-gym" else McpServer
    protocol: HttpProtocol = server_type(served, settings.session_ttl_s, settings.max_sessions)
    return make_app(service, partial(_answer, service, protocol), guard=guard)


def check_protocol(settings: ServeSettings) -> None:
    """Raise where a server cannot be as it is asked to be, or needs what is not installed."""
    if settings.protocol == OPENENV and importlib.util.find_spec("websockets") is None:
        raise MissingExtra(
            "--protocol openenv needs websockets: pip install 'agentgym-sdk[serve,openenv]'"
        )
    several = settings.workers > 1 and not settings.isolated
    if several and settings.protocol not in (OWN, OPENENV):
        raise BadRequest(
            f"--protocol {settings.protocol} keeps its sessions in one process; leave --workers"
        )


async def _answer(
    service: Service, protocol: HttpProtocol, call: HttpCall
) -> Answer | HeadedAnswer:
    """Answer a neighbour's call. The metrics are ours: none of them has any."""
    if call.path == routes.METRICS.path:
        return await answer_call(service, call)
    headers = {name.decode("latin-1"): value for name, value in call.headers.items()}
    reply = await protocol.answer(Question(call.method, call.path, call.body, headers))
    count(service.desk.figures.requests, protocol.route(call.path))
    body = b"" if reply.body is None else encode(reply.body)
    fields = [(name.encode(), value.encode("latin-1")) for name, value in reply.headers.items()]
    return HeadedAnswer((reply.status, JSON, body), fields)
