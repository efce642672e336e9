"""The conformance suite: the rules that every environment has to follow.

```python
from agentgym_env.conformance import check_environment

def test_it_passes_the_conformance_checks():
    assert not [finding for finding in check_environment("me/Guess-v0") if not finding.passed]
```
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from agentgym_env.causes import cause_of, place_of
from agentgym_env.conformance import calls, explore, judge, rules, served
from agentgym_env.conformance.subject import NotApplicable, RuleBroken, Subject
from agentgym_env.errors import AgentGymError, MissingExtra
from agentgym_env.registry import env_class
from agentgym_env.text_env import TextEnv

Rule = Callable[[Subject], str]
"""Raises `RuleBroken` or `NotApplicable`, or returns a summary of what was checked."""

_FIRST: Final = "the class and its tasks are valid"
"""Nothing else can be checked if this rule fails."""

RULES: Final[dict[str, Rule]] = {
    _FIRST: rules.the_class_and_its_tasks_are_valid,
    "Gymnasium's checker passes without a warning": rules.passes_gymnasiums_checker,
    "the splits are disjoint": rules.splits_are_disjoint,
    "tasks are held out for evaluation": rules.tasks_are_held_out,
    "a seed and a task determine the episode": rules.a_seed_gives_the_same_episode,
    "other processes give the same episode": rules.processes_agree,
    "the spaces contain every observation and action": rules.spaces_contain_all_texts,
    "available_actions and expert_action change nothing": rules.queries_change_nothing,
    "the expert solves the tasks it acts on": explore.the_expert_solves_its_tasks,
    "a step outside an episode is an error": rules.a_step_outside_an_episode_is_an_error,
    "garbage and 1 MB actions never raise": rules.garbage_never_raises,
    "failing episodes can be played to the end": explore.failing_episodes_reach_their_end,
    "actions with changed words never raise": explore.changed_actions_never_raise,
    "calls of tools never raise": calls.calls_of_tools_never_raise,
    "the expert can be asked after other actions": (explore.the_expert_answers_after_other_actions),
    "available actions are valid": explore.listed_actions_are_valid,
    "each task has one id": judge.a_task_has_one_id,
    "the first observation does not contain the answer": judge.the_answer_is_hidden,
    "rewards cannot be farmed": explore.rewards_cannot_be_farmed,
    "in-process and HTTP responses are identical": served.http_agrees_to_the_byte,
    "interleaved sessions do not leak": served.sessions_do_not_leak,
    "observations are short and steps are fast": rules.sizes_and_times_are_in_bounds,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one rule."""

    rule: str
    passed: bool
    detail: str
    applied: bool = True
    """False if the rule does not apply to this environment, or was not checked."""
    warning: bool = False
    """True if the rule found what may be intended; such a rule has passed."""
    place: str | None = None
    """`file:line` of the author's code to correct."""
    action: str | None = None
    """The action that showed the problem."""


def check_environment(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    tasks_per_split: int | Literal["all"] | None = None,
    sessions: int = 64,
    time_limit_s: float = 300.0,
    max_observation: int = 32_000,
    max_step_s: float = 2.0,
) -> Iterator[Finding]:
    """Check every rule for an environment, by id or `module:Class`; yields a result for each.

    `tasks_per_split` is the number of tasks of each split, or "all"; by default the expert plays 64
    and the other rules 6. A rule stops early after a fifteenth of `time_limit_s`, and no rule
    starts after `time_limit_s`. Longer observations than `max_observation` characters and slower
    steps than `max_step_s` are warnings.

    Raises `UnknownEnvironment` or `MissingExtra` if the environment is not available.
    """
    subject = Subject(
        env_id, dict(env_kwargs or {}), tasks_per_split, sessions, time_limit_s,
        max_observation, max_step_s,
    )  # fmt: skip
    check = _Check(subject)
    for name, rule in RULES.items():
        yield check.apply(name, rule)


class _Check:
    """Applies rules to one environment, and remembers which causes were reported."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.ends = time.monotonic() + subject.time_limit_s
        self.reported: dict[tuple[str, ...], str] = {}
        self.stopped = ""
        self.package = subject.entry_point.partition(":")[0].partition(".")[0]
        self.env_class: type[TextEnv] | None = None
        try:
            self.env_class = env_class(subject.env_id)
        except AgentGymError:
            raise
        except Exception:
            # The author's module fails on import. The first rule imports it again and reports it.
            self.env_class = None

    def apply(self, name: str, rule: Rule) -> Finding:
        """The result of one rule."""
        subject, now = self.subject, time.monotonic()
        last = rule is rules.sizes_and_times_are_in_bounds
        if not self.stopped and now > self.ends and not last:
            return Finding(
                name, True,
                f"not checked: the time limit of {subject.time_limit_s:g} s is over; raise it with "
                "--time-limit, or check less with --tasks and --sessions",
                applied=False,
            )  # fmt: skip
        if self.stopped:
            return Finding(name, True, self.stopped, applied=False)
        subject.rule_ends, subject.cut = now + subject.rule_s, ""
        finding = self._result(name, rule)
        if name == _FIRST and not finding.passed:
            self.stopped = f"not checked: see {_FIRST!r} above"
        return finding

    def _result(self, name: str, rule: Rule) -> Finding:
        try:
            detail = rule(self.subject)
            cut = f" (time is up after {self.subject.cut})" if self.subject.cut else ""
            return Finding(name, True, detail + cut)
        except NotApplicable as reason:
            return Finding(name, True, str(reason), applied=False)
        except RuleBroken as broken:
            place = place_of(self.env_class, broken.at) if self.env_class is not None else None
            return Finding(
                name, broken.warning, str(broken), warning=broken.warning, place=place,
                action=_cut(broken.action),
            )  # fmt: skip
        except MissingExtra:
            raise
        except Exception as error:
            return self._failure(name, error)

    def _failure(self, name: str, error: Exception) -> Finding:
        """The environment's own code raised an exception."""
        cause = cause_of(error, self.package, self.env_class)
        first = self.reported.setdefault(cause.key, name)
        detail = cause.text if first == name else f"{type(error).__name__}: see {first!r} above"
        return Finding(name, False, detail, place=cause.place, action=_cut(cause.action))


def _cut(action: str | None) -> str | None:
    """An action of at most 160 characters; some are 1 MB."""
    return action if action is None or len(action) <= 160 else f"{action[:157]}..."
