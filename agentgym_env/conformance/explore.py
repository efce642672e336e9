"""The conformance rules that play on: the expert's episodes, failing ones and greedy ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentgym_env.conformance.changes import UNKNOWN, changed
from agentgym_env.conformance.subject import (
    EXPERT_TURNS,
    NotApplicable,
    RuleBroken,
    Subject,
    shorten,
)
from agentgym_env.text_env import TextEnv

_SHOWN = 3
_MAX_CHANGES = 200
"""Changed actions per task."""
_MAX_LISTED = 40
"""Available actions that are tried in the first state of a task."""


@dataclass(slots=True)
class ExpertEpisode:
    """An episode of the expert."""

    task: str
    seed: int
    first: str
    """The first observation."""
    info: dict[str, Any]
    listed: list[str]
    """The actions available at the start."""
    actions: list[str] = field(default_factory=list)
    total: float = 0.0
    """The sum of rewards."""
    problem: str | None = None
    """Why the task is not solved; None if it is, or if the expert does not act on it."""
    error: Exception | None = None

    @property
    def solved(self) -> bool:
        """Whether the expert acted, and solved the task."""
        return bool(self.actions) and self.problem is None


def expert_episodes(subject: Subject) -> list[ExpertEpisode]:
    """An episode of the expert for each of up to 64 tasks per split; played once for all rules."""
    kept: list[ExpertEpisode] | None = vars(subject).get("_expert_episodes")
    if kept is None:
        env, kept = subject.make(), []
        numbered = list(enumerate(subject.tasks(64)))
        # Spread over the splits, since there may not be time for all.
        random.Random("expert").shuffle(numbered)
        if env.has_expert():
            for seed, task in subject.in_time(numbered):
                kept.append(play_expert(subject, env, task, seed))
                if kept[-1].error is not None:
                    # It is reported later, with the state that this environment is in now.
                    env = subject.make()
        env.close()
        vars(subject)["_expert_episodes"] = kept
    return kept


def play_expert(subject: Subject, env: TextEnv, task: str, seed: int) -> ExpertEpisode:
    """One episode of the expert; an exception is kept, since other tasks may be solved."""
    episode = ExpertEpisode(task, seed, "", {}, [])
    try:
        episode.first, episode.info = subject.reset(env, task, seed)
        episode.listed = list(env.available_actions() or [])
        for turn in range(EXPERT_TURNS):
            action = env.expert_action()
            if action is None:
                episode.problem = f"the expert gives up after {turn} turns" if turn else None
                return episode
            _, reward, terminated, truncated, info = subject.step(env, action)
            episode.actions.append(action)
            episode.total += reward
            if terminated or truncated:
                if not info["success"]:
                    episode.problem = f"it ends after {turn + 1} turns without success"
                return episode
        episode.problem = f"it is not solved after {EXPERT_TURNS} turns"
    except Exception as error:
        episode.error, episode.problem = error, f"{type(error).__name__}: {error}"
    return episode


def the_expert_solves_its_tasks(subject: Subject) -> str:
    """Every task on which the expert acts ends in success."""
    if not subject.make().has_expert():
        raise NotApplicable("it has no expert")
    episodes = expert_episodes(subject)
    failed = [episode for episode in episodes if episode.problem]
    solved = sum(episode.solved for episode in episodes)
    if failed:
        shown = "; ".join(f"task {e.task!r}: {e.problem}" for e in failed[:_SHOWN])
        more = f"; and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        count = f"the expert fails on {len(failed)} of {len(episodes)} tasks"
        for error in (e.error for e in failed if e.error is not None):
            error.add_note(f"{count}:")
            raise error
        last = failed[0].actions[-1] if failed[0].actions else None
        raise RuleBroken(f"{count}: {shown}{more}", at="expert", action=last)
    if not solved:
        raise RuleBroken("the expert acts on none of the tasks", at="expert")
    unclaimed = len(episodes) - solved
    return f"{solved} tasks solved" + (f", {unclaimed} not claimed" if unclaimed else "")


def the_expert_answers_after_other_actions(subject: Subject) -> str:
    """The expert acts, or yields nothing, after actions that are not its own; it never raises."""
    env = subject.make()
    if not env.has_expert():
        raise NotApplicable("it has no expert")
    asked = 0
    solved = [episode for episode in expert_episodes(subject) if episode.solved]
    for episode in subject.in_time(solved):
        draw = random.Random(f"other/{episode.task}")
        subject.reset(env, episode.task, episode.seed)
        for own in episode.actions[:6]:
            # Well-formed, so that it has an effect, and not what the expert does.
            other = _drawn([*changed(own), *episode.actions, *episode.listed[:6]], 1, draw)
            if any(subject.step(env, other[0] if other else UNKNOWN)[2:4]):
                break
            action = env.expert_action()
            asked += 1
            if action is None or any(subject.step(env, action)[2:4]) or subject.time_is_up:
                break
    if not solved:
        raise NotApplicable("the expert solves no task")
    return f"asked {asked} times"


def changed_actions_never_raise(subject: Subject) -> str:
    """Listed and expert actions with a word replaced, dropped, repeated or swapped are answered."""
    env, tried = subject.make(), 0
    own = {episode.task: episode.actions for episode in expert_episodes(subject)}
    for seed, task in subject.in_time(list(enumerate(subject.sample))):
        # Kept from its own episode: whether it can be asked on another way is another rule.
        path = own.get(task) or [a for actions in own.values() for a in actions[:1]][:6]
        draw = random.Random(f"changed/{task}")
        subject.reset(env, task, seed)
        left = _MAX_CHANGES
        while left > 0 and not subject.time_is_up:
            base = path[int(draw.random() * len(path))] if path and draw.random() < 0.5 else None
            base = base or _available(env, draw)
            attempts = changed(base)
            # The whole of a few, so that each kind of change meets each kind of action.
            for action in [*_drawn(attempts, 12, draw), base]:
                left, tried = left - 1, tried + 1
                if any(subject.step(env, action)[2:4]):
                    subject.reset(env, task, seed)
                    break
                if left <= 0 or subject.time_is_up:
                    break
    return f"{tried} actions"


def failing_episodes_reach_their_end(subject: Subject) -> str:
    """Episodes of a poor policy never raise, and their rewards stay finite, to the last turn."""
    env, turns = subject.make(), 0
    plays = [(seed, t, name) for seed, t in enumerate(subject.sample) for name in POOR_POLICIES]
    for seed, task, name in subject.in_time(plays):
        draw = random.Random(f"{name}/{task}")
        subject.reset(env, task, seed)
        choose = POOR_POLICIES[name](env, draw)
        for _ in range(subject.horizon):
            turns += 1
            if any(subject.step(env, next(choose))[2:4]) or subject.time_is_up:
                break
    return f"{turns} turns of {len(POOR_POLICIES)} poor policies"


def listed_actions_are_valid(subject: Subject) -> str:
    """An action that `available_actions` lists is a text, and not reported as invalid."""
    env = subject.make()
    valid: Counter[str] = Counter()
    invalid: dict[str, str] = {}
    reported = True
    for seed, task in subject.in_time(list(enumerate(subject.sample))):
        for action, info in _listed_steps(subject, env, task, seed):
            if not isinstance(action, str) or not action.strip():
                raise RuleBroken(
                    f"{action!r} is available in task {task!r}; an action is a text with a word",
                    at="available_actions",
                )
            reported = "invalid_action" in info
            if info.get("invalid_action"):
                invalid.setdefault(action, task)
            valid[_verb(action)] += not info.get("invalid_action")
    if not valid:
        raise NotApplicable("it lists no actions")
    _report_invalid(valid, invalid)
    unknown = "" if reported else "; the environment does not report invalid actions"
    return f"{sum(valid.values())} actions{unknown}"


def _report_invalid(valid: Counter[str], invalid: dict[str, str]) -> None:
    """Fail for an action that is never understood; warn for one that is not possible yet."""
    for action, task in invalid.items():
        if not valid[_verb(action)]:
            raise RuleBroken(
                f"{shorten(action)} is available in task {task!r}, and reported as invalid; "
                f"no available action that begins with {_verb(action)!r} is accepted",
                at="available_actions",
                action=action,
            )
    for action, task in invalid.items():
        raise RuleBroken(
            f"{len(invalid)} available actions are sometimes reported as invalid, such as "
            f"{shorten(action, 80)} in task {task!r}",
            at="available_actions", action=action, warning=True,
        )  # fmt: skip


def rewards_cannot_be_farmed(subject: Subject) -> str:
    """No play without success earns more than a solved episode."""
    env = subject.make()
    solved = {e.task: e for e in expert_episodes(subject) if e.solved}
    if not solved:
        return _rewards_do_not_repeat(subject, env)
    episodes = list(solved.values())[: len(subject.sample)]
    plays = [(e, greedy) for greedy in GREEDY_POLICIES for e in episodes]
    for episode, policy in subject.in_time(plays):
        draw = random.Random(f"greedy/{episode.task}")
        subject.reset(env, episode.task, episode.seed)
        total, paid, info, choose = 0.0, Counter[str](), {"success": False}, policy(env, episode)
        action = choose(None, draw)
        for _ in range(subject.horizon):
            _, reward, terminated, truncated, info = subject.step(env, action)
            total += reward
            paid[action] += reward > 0
            # The best without success so far: an episode need not end in failure to be farmed.
            if not info["success"] and total > max(episode.total, 0.0) * 1.0001 + 1e-6:
                often, times = paid.most_common(1)[0]
                raise RuleBroken(
                    f"task {episode.task!r} pays {total:g} without success, and {episode.total:g} "
                    f"when it is solved; {shorten(often, 80)} pays {times} times",
                    action=often,
                )
            if terminated or truncated or subject.time_is_up:
                break
            action = choose(action if reward > 0 else None, draw)
    return f"{len(episodes)} tasks, {len(GREEDY_POLICIES)} greedy policies"


def _rewards_do_not_repeat(subject: Subject, env: TextEnv) -> str:
    """Without an expert: repeating one action in one place does not pay ten times in a row."""
    for seed, task in subject.in_time(list(enumerate(subject.sample))):
        draw = random.Random(f"greedy/{task}")
        subject.reset(env, task, seed)
        action, before, times = _available(env, draw), "", 0
        for _ in range(subject.horizon):
            observation, reward, terminated, truncated, _ = subject.step(env, action)
            times = times + 1 if reward > 0 and observation == before else 0
            if times >= 10:
                raise RuleBroken(
                    f"task {task!r} pays {reward:g} each time that {shorten(action, 80)} is "
                    "repeated, and nothing changes",
                    action=action, warning=True,
                )  # fmt: skip
            if terminated or truncated or subject.time_is_up:
                break
            before = observation
            action = action if reward > 0 else _available(env, draw)
    return f"{len(subject.sample)} tasks, without an expert to compare with"


Choose = Callable[[str | None, random.Random], str]
"""The next action, given the last one if it was rewarded."""


def _repeat_rewarded(env: TextEnv, episode: ExpertEpisode) -> Choose:
    """Play as the expert until an action is rewarded, and repeat that action."""
    path = iter(episode.actions[:-1])
    repeated: list[str] = []

    def choose(rewarded: str | None, draw: random.Random) -> str:
        if rewarded is not None:
            repeated[:] = [rewarded]
        return repeated[0] if repeated else next(path, None) or _available(env, draw)

    return choose


def _greedy(env: TextEnv, episode: ExpertEpisode) -> Choose:
    """Mix the actions that were rewarded with available ones and the expert's."""
    known: list[str] = []

    def choose(rewarded: str | None, draw: random.Random) -> str:
        if rewarded is not None and rewarded not in known:
            known.append(rewarded)
        if known and draw.random() < 0.5:
            return known[int(draw.random() * len(known))]
        others = [*(env.available_actions() or []), *episode.actions[:-1]] or [UNKNOWN]
        return others[int(draw.random() * len(others))]

    return choose


def _alternate(number: int) -> Callable[[TextEnv, ExpertEpisode], Choose]:
    """Play as the expert until an action is rewarded; then another one and that one, in turns."""

    def policy(env: TextEnv, episode: ExpertEpisode) -> Choose:
        path = iter(episode.actions[:-1])
        pair: list[str] = []

        def choose(rewarded: str | None, draw: random.Random) -> str:
            if pair:
                pair.reverse()
                return pair[0]
            others = [a for a in env.available_actions() or [UNKNOWN] if a != rewarded]
            if rewarded is None or not others:
                return next(path, None) or _available(env, draw)
            # Now the other one, then the rewarded one.
            pair[:] = [others[number * 7 % len(others)], rewarded]
            return pair[0]

        return choose

    return policy


GREEDY_POLICIES = (_repeat_rewarded, _greedy, *map(_alternate, range(6)))


def _random(env: TextEnv, draw: random.Random) -> Iterator[str]:
    while True:
        yield _available(env, draw)


def _unknown(env: TextEnv, draw: random.Random) -> Iterator[str]:
    while True:
        yield UNKNOWN


def _same(env: TextEnv, draw: random.Random) -> Iterator[str]:
    action = _available(env, draw)
    while True:
        yield action


def _expert_then_wrong(env: TextEnv, draw: random.Random) -> Iterator[str]:
    """Most of the expert's way, and then only wrong turns: what fails late."""
    for _ in range(EXPERT_TURNS):
        action = env.expert_action() if env.has_expert() else None
        if action is None or draw.random() < 0.2:
            break
        yield action
    while True:
        yield UNKNOWN


POOR_POLICIES: dict[str, Callable[[TextEnv, random.Random], Iterator[str]]] = {
    "random": _random,
    "unknown word": _unknown,
    "same action": _same,
    "expert, then wrong": _expert_then_wrong,
}


def _listed_steps(
    subject: Subject, env: TextEnv, task: str, seed: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Available actions and the info of their step: in the first state, and on a random way."""
    draw = random.Random(f"listed/{task}")
    subject.reset(env, task, seed)
    for action in _drawn(env.available_actions() or [], _MAX_LISTED, draw):
        if subject.time_is_up:
            return
        subject.reset(env, task, seed)
        yield action, subject.step(env, action)[4]
    subject.reset(env, task, seed)
    for _ in range(_MAX_LISTED):
        listed = env.available_actions()
        if not listed or subject.time_is_up:
            return
        action = listed[int(draw.random() * len(listed))]
        _, _, terminated, truncated, info = subject.step(env, action)
        yield action, info
        if terminated or truncated:
            return


def _available(env: TextEnv, draw: random.Random) -> str:
    """An available action, or a word that many environments know."""
    listed = env.available_actions() or ["look", "help", "1", UNKNOWN]
    return listed[int(draw.random() * len(listed))]


def _drawn(items: list[str], most: int, draw: random.Random) -> list[str]:
    """At most so many of the items, in random order."""
    order = sorted((draw.random(), number) for number in range(len(items)))
    return [items[number] for _, number in order[:most]]


def _verb(action: str) -> str:
    return action.split()[0] if action.split() else ""
