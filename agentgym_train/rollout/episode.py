"""One episode, from `reset` to its outcome: read this first.

It knows nothing about limits, retries, concurrency, wrappers or torch, which are around it: see
`run_episode.py` and `loop.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
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
"""Consecutive non-action turns after which an agent is considered broken."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """Describes an episode to run."""

    task: str
    seed: int
    """Seed of the environment: the same task and seed give the same first observation."""
    sample: int = 0
    """Number of the episode among those of the same task and seed; each samples its own turns."""
    group: int = -1
    split: str = ""
    category: str | None = None
    env: int = 0
    """Number of the environment, among those of the run."""


class Episode:
    """An actor and an environment, turn by turn."""

    def __init__(self, actor: Actor, spec: EpisodeSpec, horizon: int, seed: int) -> None:
        """`seed` is for the actor's sampling, `horizon` the maximum turns over all trials."""
        self.turns: list[Turn] = []
        self.observation = ""
        """The first one."""
        self.reset_info: dict[str, Any] = {}
        self.pending: ActorOutput | None = None
        """What the environment was sent and has not answered."""
        self._actor, self._spec, self._seed, self._left = actor, spec, seed, horizon

    async def play(self, env: AsyncSession) -> Outcome:
        """Play the episode, and again from its start while the actor asks for another trial."""
        self.observation = await self._reset(env)
        await self._actor.begin(env, self.observation, self._seed)
        trials = self._actor.trials
        while True:
            # All trials share the horizon: a trial leaves the others their part of it.
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

    async def _reset(self, env: AsyncSession) -> str:
        reply = await env.reset(seed=self._spec.seed, task=self._spec.task)
        self.reset_info = reply.info
        return reply.observation

    async def _trial(self, env: AsyncSession, most: int) -> Outcome:
        """Take turns until the environment ends, `most` are taken, or no tokens are left."""
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
                        f"the agent of {self._actor.name} took {without_action} turns in a row "
                        "without an environment step; let it act in between"
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
        """(the turn, how many steps it counts, the outcome if the episode is over).

        Calls are carried out one after the other, at most `most` that reach the environment. The
        turn has the sum of their rewards; with several, its info has each of them.
        """
        action = output.action
        calls = _calls_of(action)
        made: list[dict[str, Any]] = []
        steps, info, rejected = 0, {**INVALID}, False
        ending: Outcome | None = None
        for call in calls:
            if call.action is None:
                # It is answered here, and the turn counts.
                made.append({"action": "", "observation": call.problem, "reward": 0.0})
                rejected = True
                continue
            if steps == most or ending is not None:
                break
            self.pending = output
            reply = await env.step(call.action)
            self.pending = None
            steps, info = steps + 1, reply.info
            rejected |= bool(reply.info.get("invalid_action"))
            made.append(
                {"action": call.action, "observation": reply.observation, "reward": reply.reward}
            )
            ending = outcome_of(reply.terminated, reply.truncated, reply.info)
        if len(calls) > 1:
            info = {**info, "invalid_action": rejected, "calls": made}
        if not output.trained:
            info = {**info, **WITHOUT_LOSS}
        turn = Turn(
            output.response,
            str(action) if isinstance(action, str) else "",
            "\n\n".join(row["observation"] for row in made),
            sum(row["reward"] for row in made),
            info,
            output.cut,
        )
        return turn, max(1, steps), ending


def _calls_of(action: str | ActionError | None) -> tuple[PlannedCall, ...]:
    """The calls of a response; an action is one, and so is a response without an action."""
    if isinstance(action, ToolCalls):
        return action.calls
    if isinstance(action, ActionError):
        return (PlannedCall("", None, action.message),)
    return (PlannedCall("", action),)


def _without_reward(turn: Turn) -> Turn:
    if not turn.reward:
        return turn
    info = {**turn.info, "reward_of_earlier_trial": turn.reward}
    return msgspec.structs.replace(turn, reward=0.0, info=info)
