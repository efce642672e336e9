"""`agentgym serve`: serves one environment over HTTP until it is stopped."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from agentgym_env.causes import in_one_line
from agentgym_env.cli.options import EnvId, EnvKwargs, choice_option, json_object
from agentgym_env.errors import AgentGymError, BadRequest
from agentgym_env.launch import failure_report
from agentgym_env.registry import env_class_with, full_id
from agentgym_env.server_token import token_of_file
from agentgym_env.text_env import TextEnv
from agentgym_env.wire import MAX_ITEMS
from agentgym_servers.host.logs import configure_logs
from agentgym_servers.host.protocols.dispatch import check_protocol, client_address, implied_kwargs
from agentgym_servers.host.request_guard import ALLOWED_HOST_HELP, checked_host, is_loopback
from agentgym_servers.host.serving import listen, make_service, run_server
from agentgym_servers.host.settings import OWN, PROTOCOLS, ServeSettings
from agentgym_servers.host.supervisor import run_cluster

logger = logging.getLogger(__name__)


def serve(
    env_id: EnvId,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 selects a free port.")
    ] = 8000,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Number of worker processes. Default: 1, or one per core for an environment "
            "that runs isolated.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File that contains the bearer token of the clients.")
    ] = None,
    max_sessions: Annotated[
        int | None,
        typer.Option(help="Maximum concurrent sessions. Default: set by the environment."),
    ] = None,
    session_ttl: Annotated[
        float, typer.Option(help="Seconds until an idle session expires.")
    ] = 3600.0,
    allowed_host: Annotated[list[str] | None, typer.Option(help=ALLOWED_HOST_HELP)] = None,
    max_body_mb: Annotated[
        int, typer.Option(min=1, help="Maximum size of a request body, in MiB.")
    ] = 16,
    max_items: Annotated[int, typer.Option(help="Maximum items per request.")] = MAX_ITEMS,
    isolate: Annotated[
        bool | None,
        typer.Option(
            "--isolate/--inline",
            help="Step environments in separate processes, with a timeout. Default: set by the "
            "environment.",
        ),
    ] = None,
    step_timeout: Annotated[
        float | None,
        typer.Option(
            help="Timeout of one call of the environment, in seconds. Default: set by the "
            "environment, or 60."
        ),
    ] = None,
    env_kwargs: EnvKwargs = "{}",
    protocol: Annotated[
        str,
        choice_option(
            PROTOCOLS, "Protocol: our own, or that of another framework (docs/adapters.md)"
        ),
    ] = OWN,
    log_json: Annotated[bool, typer.Option(help="Log as JSON lines.")] = False,
    log_actions: Annotated[
        bool, typer.Option(help="Log every step with the text of its action.")
    ] = False,
    entry_point: Annotated[str | None, typer.Option(hidden=True)] = None,
    embedded: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Serve an environment over HTTP."""
    report = _take_over_stdout() if embedded else None
    level = logging.WARNING if embedded and not log_actions else logging.INFO
    configure_logs(sys.stderr, level, as_json=log_json)
    with _reporting_failure(report):
        env_id = env_id if entry_point else full_id(env_id)
        env_settings = {
            **implied_kwargs(protocol, env_id),
            **json_object("--env-kwargs", env_kwargs),
        }
        env_type = _env_type(entry_point or env_id, env_settings, env_id)
        isolated = env_type.isolated if isolate is None else isolate
        most = env_type.max_sessions if max_sessions is None else max_sessions
        settings = ServeSettings(
            env_id=env_id,
            entry_point=entry_point or env_id,
            env_kwargs=env_settings,
            host=host,
            port=port,
            token=token_of_file(token_file),
            max_sessions=most,
            session_ttl_s=_positive("--session-ttl", session_ttl),
            allowed_hosts=tuple(map(checked_host, allowed_host or ())),
            max_body_bytes=max_body_mb * 2**20,
            max_items=max_items,
            workers=max(1, min(workers or _default_workers(isolated), most)),
            isolated=isolated,
            step_timeout_s=_positive("--step-timeout", step_timeout or env_type.step_timeout_s),
            protocol=protocol,  # type: ignore[arg-type]
            log_level=level,
            log_json=log_json,
            log_actions=log_actions,
        )
        if workers is not None and workers < 1:
            raise BadRequest(f"--workers must be at least 1, got {workers}")
        if max_items < 1:
            raise BadRequest(f"--max-items must be at least 1, got {max_items}")
        check_protocol(settings)
        if token_file is None and not is_loopback(host):
            logger.warning("%s is open to the network without a token; see --token-file", host)
        sys.exit(_run(settings, report))


def _env_type(entry_point: str, env_kwargs: Mapping[str, Any], env_id: str) -> type[TextEnv]:
    """The class to serve; an exception of its own module is one line with the place."""
    with in_one_line(entry_point, f"{env_id} cannot be loaded"):
        return env_class_with(entry_point, env_kwargs, env_id).for_serving(env_kwargs)


def _run(settings: ServeSettings, report: TextIO | None) -> int:
    def report_ready(port: int) -> None:
        address = f"[{settings.host}]" if ":" in settings.host else settings.host
        url = f"http://{address}:{port}"
        logger.info(
            "serving %s on %s (protocol %s, clients connect to %s)",
            settings.env_id, url, settings.protocol, client_address(settings.protocol, url),
        )  # fmt: skip
        if report is not None:
            report.write(json.dumps({"port": port}) + "\n")
            report.close()

    if settings.workers > 1 and not settings.isolated:
        run_cluster(settings, report_ready, follow_parent=report is not None)
        return 0
    with listen(settings.host, settings.port) as listener:
        port = listener.getsockname()[1]
        with in_one_line(settings.entry_point, f"{settings.env_id} cannot be made"):
            service = make_service(settings)
        return run_server(
            service,
            listener,
            max_socket_bytes=settings.max_socket_bytes,
            when_ready=lambda: report_ready(port),
            follow_parent=report is not None,
        )


def _default_workers(isolated: bool) -> int:
    return os.cpu_count() or 1 if isolated else 1


@contextmanager
def _reporting_failure(report: TextIO | None) -> Iterator[None]:
    """Within, an error is told to the parent, if it waits for a report, instead of printed."""
    try:
        yield
    except AgentGymError as error:
        if report is None or report.closed:
            raise
        report.write(json.dumps(failure_report(error)) + "\n")
        report.close()
        sys.exit(2)


def _take_over_stdout() -> TextIO:
    """Reserve stdout for the one line that the parent reads; other output goes to stderr."""
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return report


def _positive(option: str, seconds: float) -> float:
    if not seconds > 0:
        raise BadRequest(f"{option} must be above 0 seconds, got {seconds}")
    return seconds
