"""Turn and Trajectory: the record of one episode."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from agentgym_env.errors import Outcome


class Turn(Struct, frozen=True, omit_defaults=True):
    """One turn: the policy's response and the environment's answer."""

    response: str
    """The policy's text as it was sampled (or the oracle's action)."""
    action: str
    """The action for the environment; of several calls all, also those not carried out."""
    observation: str
    """The environment's answer; empty if there was none."""
    reward: float = 0.0
    info: dict[str, Any] = {}
    cut: bool = False
    """Whether the response ended at `turn_max_tokens` and not by itself. One that ended because the
    episode had no tokens left is not cut: its episode ends as `token_budget`."""


class Tokens(Struct, frozen=True):
    """The ids of an episode as sampled: P of the prompt, then T of turns and observations.

    An episode whose context was cut has several rows of these, each with the K of its turns that
    were sampled in that context; what a later row repeats of an earlier one is in its prompt.
    """

    prompt_ids: list[int]
    """(P,) the instruction and the first observation, up to the first sampled id."""
    completion_ids: list[int]
    """(T,) everything after: sampled ids and, between them, the observations' ids."""
    loss_mask: list[int]
    """(T,) 1 where the policy sampled the id, else 0."""
    logprobs: list[float]
    """(T,) log-probability under the sampling policy; 0.0 where the mask is 0."""
    versions: list[int]
    """(T,) weight version the id was sampled with; -1 where the mask is 0."""
    turn_ends: list[int]
    """(K,) index in `completion_ids` just past the last sampled id of each turn."""


class Trajectory(Struct, frozen=True, omit_defaults=True):
    """One episode with its K turns."""

    env: str
    task: str
    seed: int
    instruction: str
    observation: str
    """The first observation."""
    turns: list[Turn]
    outcome: Outcome
    policy: str
    """The policy: `expert`, `random`, or a model's name."""
    horizon: int
    """Maximum turns of the episode."""
    split: str = ""
    category: str | None = None
    success: bool = False
    score: float = 0.0
    error: str | None = None
    """Why the last lost attempt at the episode was lost; None if none was."""
    attempts: int = 1
    """Number of sessions used; above 1, earlier ones were lost."""
    step: int = -1
    """Optimizer step the episode was sampled at; -1 outside training."""
    group: int = -1
    """Episodes of one group share task and seed."""
    sample: int = 0
    """Number of the episode within its group."""
    seconds: float = 0.0
    tokens: Tokens | None = None
    """The first row of tokens, and the only one unless the context was cut."""
    usage: dict[str, int] = {}
    """`requests`, `prompt_tokens` and `completion_tokens` as counted by an endpoint, if one was
    used."""
    further_rows: list[Tokens] = []
    """The rows after the first, in the order of their turns."""

    @property
    def rows(self) -> list[Tokens]:
        """All rows: each sampled token is under the mask of exactly one."""
        return [] if self.tokens is None else [self.tokens, *self.further_rows]

    @property
    def longest_context(self) -> int:
        """Tokens of the longest row, its prompt included; 0 without tokens."""
        return max((len(r.prompt_ids) + len(r.completion_ids) for r in self.rows), default=0)

    @property
    def reward(self) -> float:
        """The sum of the steps' rewards."""
        return sum(turn.reward for turn in self.turns)
