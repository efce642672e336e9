"""Random ragged steps, and the plain-Python view of them that slow references read.

Nothing here or in a reference shares code with what is tested.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

from agentgym_train.algorithms import TokenBatch

cases = settings(
    # The profile `random` draws new ones, and more; see tests/conftest.py.
    max_examples=40 if settings.default.derandomize else 200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
"""For a test of an estimator against its reference."""


@dataclass
class PlayedTurn:
    """`gap` observation tokens, then `tokens` sampled ones."""

    gap: int
    tokens: int
    reward: float
    state: int = 0


@dataclass
class Episode:
    turns: list[PlayedTurn]
    tail: int = 0
    """Observation tokens after the last turn."""
    trainable: bool = True
    truncated: bool = False
    values: list[float] = field(default_factory=list)
    """One a token; likewise the next three. Empty for all zeros."""
    logprobs: list[float] = field(default_factory=list)
    policy_logprobs: list[float] = field(default_factory=list)
    ref_logprobs: list[float] = field(default_factory=list)

    @property
    def length(self) -> int:
        return sum(turn.gap + turn.tokens for turn in self.turns) + self.tail

    @property
    def sampled(self) -> list[tuple[int, int]]:
        """(place, turn) of every sampled token, in order."""
        places, at = [], 0
        for number, turn in enumerate(self.turns):
            at += turn.gap
            places += [(at + i, number) for i in range(turn.tokens)]
            at += turn.tokens
        return places

    @property
    def ret(self) -> float:
        return sum(turn.reward for turn in self.turns)

    def token_rewards(self) -> list[float]:
        """One a sampled token: a turn's at its last, else the one before, else the next."""
        owners = [turn for _, turn in self.sampled]
        rewards = [0.0] * len(owners)
        for number, turn in enumerate(self.turns):
            up_to = [i for i, owner in enumerate(owners) if owner <= number]
            if up_to:
                rewards[up_to[-1]] += turn.reward
            elif owners:
                rewards[0] += turn.reward
        return rewards

    def acted(self) -> list[int]:
        """The turns with a sampled token."""
        return [number for number, turn in enumerate(self.turns) if turn.tokens]

    def turn_rewards(self) -> list[float]:
        """One a turn of `acted`."""
        sums = dict.fromkeys(self.acted(), 0.0)
        for (_, turn), reward in zip(self.sampled, self.token_rewards(), strict=True):
            sums[turn] += reward
        return list(sums.values())


@dataclass
class Step:
    episodes: list[Episode]
    group_size: int

    def groups(self) -> list[list[Episode]]:
        """The episodes that teach, group by group."""
        size = self.group_size
        whole = [self.episodes[i : i + size] for i in range(0, len(self.episodes), size)]
        return [[e for e in group if e.trainable] for group in whole]

    def batch(self, padding: int = 0, more_turns: int = 0) -> TokenBatch:
        width = max(1, *(e.length for e in self.episodes), 0) + padding
        turns = max(1, *(len(e.turns) for e in self.episodes), 0) + more_turns
        return TokenBatch(
            loss_mask=rows([mask_of(e) for e in self.episodes], width),
            rewards=rows([[t.reward for t in e.turns] for e in self.episodes], turns),
            turn_ends=rows([ends_of(e) for e in self.episodes], turns).long(),
            trainable=torch.tensor([e.trainable for e in self.episodes]),
            group_size=self.group_size,
            states=rows([[t.state for t in e.turns] for e in self.episodes], turns, -1).long(),
            truncated=torch.tensor([e.truncated for e in self.episodes]),
            values=self._tokens("values", width),
            logprobs=self._tokens("logprobs", width),
            policy_logprobs=self._tokens("policy_logprobs", width),
            ref_logprobs=self._tokens("ref_logprobs", width),
        )

    def _tokens(self, name: str, width: int) -> Tensor:
        """What nobody may read, off the sampled tokens, is no number."""
        kept = []
        for episode in self.episodes:
            given = getattr(episode, name) or [0.0] * episode.length
            places = {place for place, _ in episode.sampled}
            kept.append([x if i in places else math.nan for i, x in enumerate(given)])
        return rows(kept, width, math.nan)


def rows(lists: Sequence[Sequence[float]], width: int, fill: float = 0.0) -> Tensor:
    """(B, width)."""
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in lists])


def mask_of(episode: Episode) -> list[float]:
    places = {place for place, _ in episode.sampled}
    return [float(i in places) for i in range(episode.length)]


def ends_of(episode: Episode) -> list[int]:
    ends, at = [], 0
    for turn in episode.turns:
        at += turn.gap + turn.tokens
        ends.append(at)
    return ends


def close(found: Tensor, step: Step, expected: Sequence[Sequence[float]]) -> None:
    """`expected` has a number a sampled token for each episode; elsewhere there is exactly 0."""
    assert found.dtype == torch.float32
    full = torch.zeros(found.shape, dtype=torch.float64)
    mask = torch.zeros(found.shape, dtype=torch.bool)
    for i, (episode, numbers) in enumerate(zip(step.episodes, expected, strict=True)):
        if episode.trainable:
            for (place, _), number in zip(episode.sampled, numbers, strict=True):
                full[i, place] = number
                mask[i, place] = True
    assert not found[~mask].any()
    torch.testing.assert_close(found.double(), full, rtol=1e-5, atol=1e-6)


def each_token(step: Step, numbers: dict[int, float]) -> list[list[float]]:
    """The same on every token of an episode; `numbers` by `id` of the episode."""
    return [[numbers.get(id(e), 0.0)] * len(e.sampled) for e in step.episodes]


def each_turn(step: Step, numbers: dict[tuple[int, int], float]) -> list[list[float]]:
    """The same on every token of a turn; `numbers` by `id` of the episode and turn."""
    return [[numbers.get((id(e), turn), 0.0) for _, turn in e.sampled] for e in step.episodes]


def mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def deviation(numbers: Sequence[float]) -> float:
    """With n - 1; 0 for one number."""
    if len(numbers) < 2:
        return 0.0
    middle = mean(numbers)
    return math.sqrt(math.fsum((x - middle) ** 2 for x in numbers) / (len(numbers) - 1))


def whitened(lists: Sequence[Sequence[float]]) -> list[list[float]]:
    together = [x for numbers in lists for x in numbers]
    middle, spread = mean(together or [0.0]), deviation(together)
    return [[(x - middle) / (spread + 1e-8) for x in numbers] for numbers in lists]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Ragged turns, empty ones, empty episodes, lost ones, lost groups, groups of equals."""
    size = draw(st.integers(1, 4))
    rewards = draw(st.sampled_from([[0.0], [1.0], [0.0, 1.0], [-1.0, -0.125, 0.0, 0.5, 1.0, 2.5]]))
    turn = st.builds(
        PlayedTurn, st.integers(0, 2), st.integers(0, 3), st.sampled_from(rewards),
        st.integers(0, 2),
    )  # fmt: skip
    episode = st.builds(
        Episode, st.lists(turn, max_size=4), st.integers(0, 2), truncated=st.booleans()
    )
    episodes: list[Episode] = []
    for _ in range(draw(st.integers(1, 3))):
        group = draw(st.lists(episode, min_size=size, max_size=size))
        teaching = draw(st.sampled_from(["all", "some", "one", "none"]))
        for number, member in enumerate(group):
            member.trainable = {
                "all": True,
                "some": teaching == "some" and draw(st.booleans()),
                "one": number == 0,
                "none": False,
            }[teaching]
        episodes += group
    numbers = random.Random(draw(st.integers(0, 999)))
    for member in episodes:
        for name in ("values", "logprobs", "policy_logprobs", "ref_logprobs"):
            drawn = [numbers.randint(-8, 8) / 8 for _ in range(member.length)]
            setattr(member, name, drawn)
    return Step(episodes, size)
