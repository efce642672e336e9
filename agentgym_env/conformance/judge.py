"""The conformance rules about tasks: two ids for one, and answers that can be read off."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from agentgym_env.conformance.explore import ExpertEpisode, expert_episodes, play_expert
from agentgym_env.conformance.subject import NotApplicable, RuleBroken, Subject, shorten
from agentgym_env.text_env import GymnasiumText, TextEnv

_SEEDS = 24
"""Seeds with which two tasks have to be equal: what a coin decides is not."""
_SETTLED = 5
"""The seed after which a task that plays the same with every seed is not played with more."""
_SCRIPT_TURNS = 40
_PLAIN_INFO: Final = {"task", "seed", "turn", "success", "score"}
_LABEL = (
    r"\b(?:answer|solution|secret|gold(?:en)?|expected|correct)\b(?: \w+)?(?: is| was|\s*[:=>-])+"
)
_TOKEN = re.compile(r"\w+|\W")


def a_task_has_one_id(subject: Subject) -> str:
    """No two ids begin alike, have the same solution and answer the same actions alike."""
    env = subject.make()
    split_of = env.tasks.split_of
    tasks = subject.tasks(256)
    by_first: dict[str, list[str]] = defaultdict(list)
    for task in subject.in_time(tasks):
        by_first[subject.reset(env, task, 0)[0]].append(task)
    groups = [group for group in by_first.values() if len(group) > 1]
    # Those in two splits come first: they make an evaluation wrong.
    groups.sort(key=lambda group: len({split_of(task) for task in group}) == 1)
    for group in subject.in_time(groups):
        twins = _equal_tasks(subject, env, group)
        if twins:
            one = twins[0]
            other = next((t for t in twins if split_of(t) != split_of(one)), twins[1])
            alike = "observations and solution" if env.has_expert() else "observations"
            raise RuleBroken(
                f"{one!r} ({split_of(one)}) and {other!r} ({split_of(other)}) are one task: "
                f"the same {alike}",
                at="_reset",
                # The tasks of an environment of Gymnasium's are seeds, which it may ignore.
                warning=split_of(one) == split_of(other)
                or not env.has_expert()
                or env.tasks is GymnasiumText.tasks,
            )
    return f"{sum(map(len, by_first.values()))} tasks"


def _equal_tasks(subject: Subject, env: TextEnv, tasks: list[str]) -> list[str]:
    """Tasks among these that are played alike with every seed: those in two splits, if any."""
    history: dict[str, set[Any]] = defaultdict(set)
    settled: list[list[str]] = []
    # Without the expert first: it may be slow, and is not needed to tell most tasks apart.
    by_play: dict[Any, list[str]] = defaultdict(list)
    for task in subject.in_time(tasks):
        by_play[_play(subject, env, task, 0, ())].append(task)
    groups = [group for group in by_play.values() if len(group) > 1]
    for seed in range(_SEEDS):
        finer: list[list[str]] = []
        for group in groups:
            alike: dict[Any, list[str]] = defaultdict(list)
            for task in group:
                if subject.time_is_up:
                    return []
                course = _course(subject, env, task, seed)
                alike[course].append(task)
                history[task].add(course)
            for found in (found for found in alike.values() if len(found) > 1):
                ignores_seed = seed >= _SETTLED and len(history[found[0]]) == 1
                (settled if ignores_seed else finer).append(found)
        groups = finer
    by_splits = sorted(settled + groups, key=lambda g: -len({env.tasks.split_of(t) for t in g}))
    return by_splits[0] if by_splits else []


def _course(subject: Subject, env: TextEnv, task: str, seed: int) -> tuple[Any, ...]:
    """What distinguishes a task: its solution, and how it answers a few random actions."""
    solution: Sequence[str] = ()
    if env.has_expert():
        solution = play_expert(subject, env, task, seed).actions
    return (tuple(solution), _play(subject, env, task, seed, solution))


def _play(
    subject: Subject, env: TextEnv, task: str, seed: int, known: Sequence[str]
) -> tuple[Any, ...]:
    """The observations and rewards of random actions, available or known ones."""
    draw = random.Random("play")
    seen: list[Any] = [subject.reset(env, task, seed)[0]]
    for _ in range(_SCRIPT_TURNS):
        listed = [*(env.available_actions() or []), *known] or ["look", "help", "1"]
        observation, reward, *ended, _ = subject.step(env, listed[int(draw.random() * len(listed))])
        seen.append((observation, reward))
        if any(ended):
            break
    return tuple(seen)


def the_answer_is_hidden(subject: Subject) -> str:
    """Neither the first observation nor the info of a reset contains what the expert will do."""
    episodes = [episode for episode in expert_episodes(subject) if episode.solved]
    if len(episodes) < 2:
        raise NotApplicable("it has no expert" if not episodes else "the expert solves one task")
    answers = dict(zip(map(id, episodes), _answers(episodes), strict=True))
    _info_contains_no_answer(episodes, answers)
    _observation_contains_no_solution(episodes)
    given = [(episode, answers[id(episode)]) for episode in episodes if answers[id(episode)]]
    if len({answer for _, answer in given}) < 2:
        return f"{len(episodes)} tasks"
    labelled = [
        pair for pair in given
        if re.search(rf"{_LABEL}\W*{re.escape(pair[1])}\b", pair[0].first, re.IGNORECASE)
    ]  # fmt: skip
    if 2 * len(labelled) >= len(given):
        episode, answer = labelled[0]
        raise RuleBroken(
            f"the first observation of task {episode.task!r} names the answer {answer!r}",
            at="_reset", action=episode.actions[-1],
        )  # fmt: skip
    shown = [(episode, answer) for episode, answer in given if _has(episode.first, answer)]
    if len(shown) == len(episodes) and (
        all(map(_is_singled_out, episodes)) or _wrong_answers_end(subject, given)
    ):
        episode, answer = shown[0]
        raise RuleBroken(
            f"the answer is in the first observation of every task, such as {answer!r} in task "
            f"{episode.task!r}",
            at="_reset", action=episode.actions[-1], warning=True,
        )  # fmt: skip
    return f"{len(episodes)} tasks"


def _answers(episodes: list[ExpertEpisode]) -> list[str]:
    """The last action of each episode, without the words that all of them begin or end with."""
    lists = [_TOKEN.findall(episode.actions[-1]) for episode in episodes]
    shortest = min(map(len, lists))
    start = end = 0
    while start < shortest and len({tokens[start] for tokens in lists}) == 1:
        start += 1
    while end < shortest - start and len({tokens[-1 - end] for tokens in lists}) == 1:
        end += 1
    return ["".join(tokens[start : len(tokens) - end]).strip() for tokens in lists]


def _info_contains_no_answer(episodes: list[ExpertEpisode], answers: dict[int, str]) -> None:
    found: dict[str, list[tuple[ExpertEpisode, str]]] = defaultdict(list)
    for episode in episodes:
        answer = answers[id(episode)]
        for name, value in episode.info.items():
            text = str(value).casefold()
            is_answer = text == answer.casefold() or text == episode.actions[-1].casefold()
            is_solution = bool(_solution_in(text, [a.casefold() for a in episode.actions]))
            if name not in _PLAIN_INFO and answer and (is_answer or is_solution):
                found[name].append((episode, str(value)))
    for name, pairs in found.items():
        if 2 * len(pairs) >= len(episodes) and len({value for _, value in pairs}) > 1:
            raise RuleBroken(
                f"the info of the reset of task {pairs[0][0].task!r} contains the answer: "
                f"{name!r} is {shorten(pairs[0][1], 80)}",
                at="details", action=pairs[0][0].actions[-1],
            )  # fmt: skip


def _observation_contains_no_solution(episodes: list[ExpertEpisode]) -> None:
    several = [episode for episode in episodes if len(episode.actions) > 1]
    shown = [e for e in several if _solution_in(e.first.casefold(), _folded(e.actions))]
    if shown and 2 * len(shown) >= len(several) and len({tuple(e.actions) for e in shown}) > 1:
        raise RuleBroken(
            f"the first observation of task {shown[0].task!r} contains the expert's "
            f"{len(shown[0].actions)} actions in order",
            at="_reset", action=shown[0].actions[0],
        )  # fmt: skip


def _folded(texts: Sequence[str]) -> list[str]:
    return [text.casefold() for text in texts]


def _solution_in(text: str, actions: Sequence[str]) -> bool:
    """Whether several actions follow each other in a text, with punctuation or "then" between."""
    if len(actions) < 2 or not all(action in text for action in actions):
        return False
    between = r"(?:\W{1,5}(?:\d+\W{1,3})?(?:and |then )*)"
    return re.search(between.join(map(re.escape, actions)), text) is not None


def _has(text: str, answer: str) -> bool:
    pattern = rf"(?<!\w){re.escape(answer)}(?!\w)"
    return re.search(pattern, text, re.IGNORECASE) is not None


def _is_singled_out(episode: ExpertEpisode) -> bool:
    """Whether the last action is the only available one that the first observation contains."""
    named = [action for action in episode.listed if _has(episode.first, action)]
    return len(episode.listed) > 1 and named == [episode.actions[-1]]


def _wrong_answers_end(subject: Subject, given: list[tuple[ExpertEpisode, str]]) -> bool:
    """Whether another task's answer ends the episode without success: a world of answers."""
    env = subject.make()
    for (episode, answer), (other, wrong) in pairwise(given[:6]):
        if answer == wrong:
            continue
        subject.reset(env, episode.task, episode.seed)
        for action in episode.actions[:-1]:
            if any(subject.step(env, action)[2:4]):
                return False
        _, _, terminated, _, info = subject.step(env, other.actions[-1])
        if not terminated or info["success"]:
            return False
    return True
