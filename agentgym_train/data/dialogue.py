"""The texts of an episode, and the column that keeps the rest of it beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Struct

from agentgym_env.actions import ActionError, action_format
from agentgym_env.errors import ConfigError
from agentgym_env.reasoning import reply_of
from agentgym_env.trajectory import Trajectory, Turn

COLUMN: Final = "agentgym"
"""The column with the rest of an episode, as JSON text: the same type in every row of a dataset."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """The texts of an episode, in their order."""

    instruction: str
    observation: str
    exchanges: list[tuple[str, str | None]]
    """(response, observation); the observation is None if the texts end before it."""


class _Rest(Struct, frozen=True):
    words: str
    """A digest of the texts, which detects changes of them."""
    episode: Trajectory
    """The episode without the texts."""


def dialogue_of(trajectory: Trajectory) -> Dialogue:
    """The texts of an export: they end with the policy's last response."""
    turns = trajectory.turns
    exchanges: list[tuple[str, str | None]] = [(t.response, t.observation) for t in turns]
    if exchanges:
        exchanges[-1] = (exchanges[-1][0], None)
    return Dialogue(trajectory.instruction, trajectory.observation, exchanges)


def folded(instruction: str, texts: Iterable[tuple[bool, str]]) -> Dialogue:
    """The dialogue of texts, each with whether it is the policy's.

    Several messages of others between two responses become one.
    """
    opening: list[str] = []
    exchanges: list[tuple[str, str | None]] = []
    for by_policy, text in texts:
        if by_policy:
            if exchanges and exchanges[-1][1] is None:
                exchanges[-1] = (exchanges[-1][0], "")
            exchanges.append((text, None))
        elif not exchanges:
            opening.append(text)
        else:
            response, before = exchanges[-1]
            exchanges[-1] = (response, text if before is None else f"{before}\n\n{text}")
    return Dialogue(instruction, "\n\n".join(opening), exchanges)


def rest_of(trajectory: Trajectory, *, tokens: bool = True) -> str:
    """The column of an episode; `tokens` includes the sampled ids, if they are stored."""
    last = len(trajectory.turns) - 1
    turns = [
        msgspec.structs.replace(t, response="", observation=t.observation if i == last else "")
        for i, t in enumerate(trajectory.turns)
    ]
    bare = msgspec.structs.replace(trajectory, instruction="", observation="", turns=turns)
    if not tokens:
        bare = msgspec.structs.replace(bare, tokens=None, further_rows=[])
    return msgspec.json.encode(_Rest(_digest(dialogue_of(trajectory)), bare)).decode()


def restored(dialogue: Dialogue, column: str) -> Trajectory:
    """The episode of a row of our export; raises `ConfigError` if the column is broken."""
    try:
        found = msgspec.json.decode(column, type=_Rest)
    except (msgspec.DecodeError, TypeError) as error:
        raise ConfigError(f"its column {COLUMN} is broken: {error}") from error
    stored = found.episode
    if _digest(dialogue) == found.words and len(dialogue.exchanges) == len(stored.turns):
        turns = [
            msgspec.structs.replace(
                turn,
                response=response,
                observation=turn.observation if answer is None else answer,
            )
            for turn, (response, answer) in zip(stored.turns, dialogue.exchanges, strict=True)
        ]
        return _with_texts(stored, dialogue, turns)
    # The texts were edited: they are used, and the sampled tokens no longer belong to them.
    stored = msgspec.structs.replace(stored, tokens=None, further_rows=[])
    turns = turns_of(dialogue)
    if len(turns) == len(stored.turns):
        turns = [
            msgspec.structs.replace(new, reward=old.reward, info=old.info)
            for new, old in zip(turns, stored.turns, strict=True)
        ]
    return _with_texts(stored, dialogue, turns)


def made_of(
    dialogue: Dialogue,
    *,
    env: str,
    task: str = "",
    success: bool = True,
    reward: float | None = None,
    infos: list[dict[str, Any]] | None = None,
) -> Trajectory:
    """An episode of which only the texts and the result are known.

    The last turn gets the reward, by default 1 for a success. Without a task, the task is named
    after the first prompt, so that episodes with the same prompt stay together.
    """
    turns = turns_of(dialogue)
    if not turns:
        raise ConfigError("it has no response of the policy")
    infos = infos or [{} for _ in turns]
    turns = [
        msgspec.structs.replace(turn, info=info) for turn, info in zip(turns, infos, strict=True)
    ]
    total = float(success) if reward is None else reward
    turns[-1] = msgspec.structs.replace(turns[-1], reward=total)
    return Trajectory(
        env=env,
        task=task or "prompt-" + _digest(Dialogue(dialogue.instruction, dialogue.observation, [])),
        seed=0,
        instruction=dialogue.instruction,
        observation=dialogue.observation,
        turns=turns,
        outcome="success" if success else "failure",
        policy="imported",
        horizon=len(turns),
        success=success,
        score=total,
    )


def turns_of(dialogue: Dialogue) -> list[Turn]:
    """The turns of a dialogue."""
    return [Turn(text, _action_in(text), answer or "") for text, answer in dialogue.exchanges]


def _action_in(text: str) -> str:
    """Of the text without reasoning, what follows `Action:`, else all; empty if there are two."""
    form = "react" if "Action:" in (reply_of(text) or "") else "plain"
    found = action_format(form).parse(text)
    return "" if isinstance(found, ActionError) else found


def _with_texts(episode: Trajectory, dialogue: Dialogue, turns: list[Turn]) -> Trajectory:
    return msgspec.structs.replace(
        episode, instruction=dialogue.instruction, observation=dialogue.observation, turns=turns
    )


def _digest(dialogue: Dialogue) -> str:
    texts = [dialogue.instruction, dialogue.observation, dialogue.exchanges]
    return hashlib.blake2b(msgspec.json.encode(texts), digest_size=8).hexdigest()
