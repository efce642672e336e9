"""`agentgym gateway`: try an agent with a model, and see what would be trained on."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape

from agentgym_env.cli.options import with_option_groups
from agentgym_env.errors import INTERRUPTED, ConfigError
from agentgym_env.printable import one_line
from agentgym_gateway.settings import GatewaySettings
from agentgym_train.config.options import SettingsOptions
from agentgym_train.config.policy import HORIZON, PolicyConfig
from agentgym_train.event_loop import LoopRunner

_POLICY: Final = SettingsOptions(
    PolicyConfig,
    without=("agent", "action_format"),
    required={"model": "hf:PATH_OR_ID, starter:NAME or vllm:URL."},
)
_GATEWAY: Final = SettingsOptions(GatewaySettings, without=("address_file", "crashes"))


@with_option_groups
def gateway(
    given: Annotated[dict[str, Any], _POLICY],
    limits: Annotated[dict[str, Any], _GATEWAY],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="The agent, after --; without it, start the agent yourself."),
    ] = None,
    env: Annotated[str, typer.Option(help="Id of an environment that the agent plays.")] = "",
    task: Annotated[str | None, typer.Option(help="Its task; default: one of split.")] = None,
    split: Annotated[str, typer.Option(help="Split of the task.")] = "train",
    horizon: Annotated[
        int, typer.Option(min=1, help="Maximum steps in the environment.")
    ] = HORIZON,
    seed: Annotated[int, typer.Option(min=0, help="Seed of task and sampling.")] = 0,
) -> None:
    """Serve a model to a black-box agent for one episode, and show what was recorded.

    It is an OpenAI-compatible endpoint: the agent needs the base URL and the key that are shown.
    The episode ends when the environment does, when the agent posts a reward, or with Ctrl-C.
    """
    config, settings = PolicyConfig(**given), GatewaySettings(**limits)
    start = task, split, horizon, seed
    raise typer.Exit(_serve(config, settings, command or (), env, start))


def _serve(
    config: PolicyConfig,
    settings: GatewaySettings,
    command: Sequence[str],
    env: str,
    start: tuple[str | None, str, int, int],
) -> int:
    from agentgym_gateway.programs import Command
    from agentgym_train.models.available import check_available
    from agentgym_train.rollout.policy_spec import parse_policy, served_policy

    if command:
        Command(tuple(command)).check()
    name, console = parse_policy(config.model), Console()
    if name.kind not in ("hf", "vllm"):
        raise ConfigError(f"the gateway serves models (hf: or vllm:), got {config.model!r}")
    if name.kind == "hf":
        check_available(name.model)
    # Only now, since it loads torch.
    from agentgym_gateway.server import Gateway
    from agentgym_train.models.loading import quiet_libraries
    from agentgym_train.rollout.policy import Policy, give_weights, make_policy
    from agentgym_train.rollout.runner import RolloutRunner

    quiet_libraries()
    with ExitStack() as stack:
        runner: Any = stack.enter_context(RolloutRunner(env)) if env else None
        loop = runner.run if runner is not None else stack.enter_context(LoopRunner()).run
        own = runner.card.instruction if runner is not None else ""
        policy: Policy = (
            served_policy(name, config, env_instruction=own)
            if name.kind == "vllm"
            else make_policy(replace(config, model=name.model), env_instruction=own)
        )
        shown = Gateway(
            policy.engine,
            policy.tokenizer,
            policy.config,
            model=name.model or name.url,
            settings=settings,
            end_ids=policy.chat.end_ids,
        )
        try:
            loop(give_weights(policy))
            return int(loop(_episode(shown, runner, policy.instruction, command, start, console)))
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            loop(shown.close())
            loop(policy.engine.close())


async def _episode(
    gateway: Any,
    runner: Any,
    instruction: str,
    command: Sequence[str],
    start: tuple[str | None, str, int, int],
    console: Console,
) -> int:
    """Serve one episode; returns the exit status."""
    from agentgym_gateway.programs import AgentLost, Command, EpisodeAccess

    task, split, horizon, seed = start
    await gateway.start()
    session, observation, info, tools = None, "", {}, ()
    if runner is not None:
        session = await runner.open_session()
        reply = await session.reset(seed=seed, task=task, split=None if task else split)
        observation, info, tools = reply.observation, reply.info, runner.card.tools
    episode = gateway.open_episode(
        session, observation=observation, instruction=instruction, info=info, seed=seed,
        horizon=horizon if session is not None else 0, tools=tools,
    )  # fmt: skip
    access = EpisodeAccess(
        gateway.base_url, episode.key, str(info.get("task", "")), seed, observation,
        instruction, horizon,
    )  # fmt: skip
    status = 0
    try:
        if command:
            agent = asyncio.create_task(Command(tuple(command), shows=True).run(access))
            over = asyncio.create_task(episode.over.wait())
            await asyncio.wait([agent, over], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([agent], timeout=10.0)
            over.cancel()
            agent.cancel()
            with suppress(asyncio.CancelledError):
                await agent
        else:
            for key, value in access.environ.items():
                if value:
                    line = f"export {key}={shlex.quote(value)}"
                    console.print(line, soft_wrap=True, markup=False, highlight=False)
            await episode.over.wait()
    except AgentLost as error:
        # After the end its requests are rejected, which few agents expect.
        ended = episode.over.is_set()
        after = " after the end of the episode" if ended else ""
        console.print(f"[red]{escape(str(error))}{after}[/]", soft_wrap=True)
        status = 0 if ended else 1
    finally:
        finished = await gateway.close_episode(episode)
        if session is not None:
            await session.close()
        _report(finished, console)
    return status


def _report(finished: Any, console: Console) -> None:
    """Show the rows and turns that training would have."""
    reward = sum(turn.reward for turn in finished.turns)
    console.print(
        f"{finished.outcome or 'ended by the agent'}: reward {reward:g}, {finished.calls} calls, "
        f"{finished.tokens} sampled tokens in {len(finished.rows)} rows.",
        highlight=False,
    )
    turns = iter(finished.turns)
    for number, row in enumerate(finished.rows, 1):
        console.print(
            f"row {number}: {len(row.prompt_ids)} tokens of prompt, {len(row.turn_ends)} turns, "
            f"{sum(row.loss_mask)} of {len(row.completion_ids)} further tokens are trained on",
            highlight=False,
        )
        for _ in row.turn_ends:
            turn = next(turns)
            console.print(
                f"  {one_line(turn.response, 70)!r} -> {one_line(turn.action, 40)!r}: "
                f"{one_line(turn.observation, 60)!r}",
                soft_wrap=True, markup=False, highlight=False,
            )  # fmt: skip
    if len(finished.rows) > 1:
        console.print(
            "A new row begins where the agent changed earlier messages, its system prompt or its "
            "tools, or where the chat template drops reasoning.",
            soft_wrap=True,
        )
