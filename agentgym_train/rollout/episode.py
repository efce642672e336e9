"""One episode, from `reset` to its outcome: read this first.

A turn is a response of the actor and the environment's answer to it. The response is an action, or
several (tool calls), or it has no valid one. In a turn without an action, such as a plan, the actor
does not act, and the environment has no part in it. The horizon counts actions that reach the
environment, and 1 for a response of which none does; it does not count turns without an action.
An actor that reflects on its failure plays the same task again: each time is a trial.

Nothing here knows about limits, retries, concurrency, wrappers or torch, which are around it: see
`run_episode.py` and `loop.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from agentgym_env.actions import ActionError
from agentgym_env.client.aio import AsyncSession
from agentgym_env.errors import ConfigError, Outcome, outcome_of
from agentgym_env.trajectory import Turn
from agentgym_train.rollout.actors import Actor, ActorOutput
from agentgym_train.rollout.tool_calls import PlannedCall, ToolCalls

INVALID: Final[dict[str, Any]] = {"invalid_action": True}
"""The info of a turn whose response has no action; the environment never sees it."""
WITHOUT_LOSS: Final[dict[str, Any]] = {"loss": False}
"""The info of a turn that is only context for those who learn from the episode."""
_MAX_NON_ACTION_TURNS: Final = 8
"""Consecutive turns without an action after which an agent is considered broken."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Describes an episode to run."""

    task: str
    seed: int
    """Seed of the environment: the same task and seed give the same first observation."""
    sample: int = 0
    """Number of the episode among those of the same task and seed; each samples its own turns."""
    group: int = -1
    """Number of its group in an RL run; -1 for an episode without a group."""
    split: str = ""
    """The split of its task, for reports; so is the category."""
    category: str | None = None
    env: int = 0
    """Number of the environment, among those of the run."""


class Episode:
    """An actor and an environment, turn by turn."""

    def __init__(self, actor: Actor, spec: EpisodeSpec, horizon: int, seed: int) -> None:
        """`seed` is for the actor's sampling; all trials share the `horizon`."""
        self.turns: list[Turn] = []
        self.observation = ""
        """The first one."""
        self.info: dict[str, Any] = {}
        """The last one of this trial that tells success and score."""
        self._actor, self._spec, self._seed, self._left = actor, spec, seed, horizon
        self._unanswered: tuple[ActorOutput, list[_Result]] | None = None

    async def play(self, env: AsyncSession) -> Outcome:
        """Play the episode, and again from its start while the actor asks for another trial."""
        self.observation = await self._reset(env)
        await self._actor.begin(env, self.observation, self._seed)
        trials = self._actor.trials
        while True:
            # A trial leaves those that are planned after it their part of the horizon.
            outcome = await self._trial(env, -(-self._left // trials))
            if not self._left:
                return outcome
            last = self.turns[-1].observation if self.turns else self.observation
            reflection = await self._actor.reflection(outcome, last)
            if reflection is None:
                return outcome
            # Only the last trial counts: failing first must not be rewarded.
            self.turns = [_without_reward(turn) for turn in self.turns]
            again = await self._reset(env)
            self.turns.append(Turn(reflection, "", again, cut=self._actor.was_cut))
            await self._actor.begin_again(reflection, again)
            trials = max(1, trials - 1)

    def unanswered(self) -> Turn | None:
        """The turn that the environment has not answered in full, if there is one."""
        return None if self._unanswered is None else _turn_of(*self._unanswered)

    async def _reset(self, env: AsyncSession) -> str:
        reply = await env.reset(seed=self._spec.seed, task=self._spec.task)
        self.info = reply.info
        return reply.observation

    async def _trial(self, env: AsyncSession, most: int) -> Outcome:
        """Take turns until the environment ends, `most` are counted, or the actor has no more."""
        taken = without_action = 0
        while taken < most:
            output = await self._actor.act()
            if output is None:
                return "token_budget"
            if output.action is None:
                self.turns.append(Turn(output.response, "", output.answer, cut=output.cut))
                without_action += 1
                if without_action > _MAX_NON_ACTION_TURNS:
                    raise ConfigError(
                        f"the agent took {without_action} turns in a row without an environment "
                        f"step (with {self._actor.name}); its class must let it act in between"
                    )
                continue
            turn, steps, ending = await self._turn(env, output, most - taken)
            self.turns.append(turn)
            taken, without_action, self._left = taken + steps, 0, self._left - steps
            if ending is not None:
                return ending
            if taken < most:
                results = [call["observation"] for call in turn.info.get("calls", ())]
                await self._actor.observe(turn.observation, results)
        return "horizon"

    async def _turn(
        self, env: AsyncSession, output: ActorOutput, most: int
    ) -> tuple[Turn, int, Outcome | None]:
        """Carry out the actions of a response one after the other, at most `most`.

        Returns the turn, what it counts, and the outcome if the episode is over.
        """
        results: list[_Result] = []
        steps, ending = 0, None
        for call in _calls_of(output):
            if steps == most or ending is not None:
                break
            if call.action is None:
                results.append(_Result("", call.problem))
                continue
            self._unanswered = output, results
            reply = await env.step(call.action)
            self._unanswered = None
            steps += 1
            results.append(_Result(call.action, reply.observation, reply.reward, reply.info, True))
            if "success" in reply.info:
                self.info = reply.info
            ending = outcome_of(reply.terminated, reply.truncated, reply.info)
        return _turn_of(output, results), max(1, steps), ending


@dataclass(frozen=True, slots=True)
class _Result:
    """What an action led to, or why a call has none."""

    action: str
    observation: str
    reward: float = 0.0
    info: dict[str, Any] = field(default_factory=INVALID.copy)
    is_of_env: bool = False
    """Whether the environment answered."""


def _calls_of(output: ActorOutput) -> tuple[PlannedCall, ...]:
    """The calls of a response; an action is a single one, and an error one without an action."""
    action = output.action
    if isinstance(action, ToolCalls):
        return action.calls
    if isinstance(action, ActionError):
        return (PlannedCall("", None, action.message),)
    return (PlannedCall("", action),)


def _turn_of(output: ActorOutput, results: Sequence[_Result]) -> Turn:
    """The turn of a response with these results; with several calls its info has each of them."""
    action = output.action
    infos = [result.info for result in results if result.is_of_env]
    # A response without a call that was carried out is invalid, unless it is unanswered.
    info = next(reversed(infos), {**INVALID} if results else {})
    if isinstance(action, ToolCalls) and len(action.calls) > 1 and results:
        rows = [
            {"action": r.action, "observation": r.observation, "reward": r.reward} for r in results
        ]
        rejected = any(result.info.get("invalid_action") for result in results)
        info = {**info, "invalid_action": rejected, "calls": rows}
    if not output.trained:
        info = {**info, **WITHOUT_LOSS}
    return Turn(
        output.response,
        str.__str__(action) if isinstance(action, str) else "",
        "\n\n".join(result.observation for result in results),
        sum((result.reward for result in results), 0.0),
        info,
        output.cut,
    )


def _without_reward(turn: Turn) -> Turn:
    if not turn.reward:
        return turn
    info = {**turn.info, "reward_of_earlier_trial": turn.reward}
    return msgspec.structs.replace(turn, reward=0.0, info=info)
