"""The conformance suite: the rules that every environment has to follow.

```python
from agentgym_env.conformance import check_environment

def test_it_passes_the_conformance_checks():
    assert not [finding for finding in check_environment("me/Guess-v0") if not finding.passed]
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentgym_env.conformance import rules, served
from agentgym_env.conformance.rules import NotApplicable, RuleBroken, Subject
from agentgym_env.registration import env_class

Rule = Callable[[Subject], str]
"""Raises `RuleBroken` or `NotApplicable`, or returns a summary of what was checked."""

RULES: Final[dict[str, Rule]] = {
    "Gymnasium's checker passes without a warning": rules.passes_gymnasiums_checker,
    "the splits are disjoint": rules.splits_are_disjoint,
    "a seed and a task determine the episode": rules.a_seed_gives_the_same_episode,
    "other processes give the same episode": rules.processes_agree,
    "the spaces contain every observation and action": rules.spaces_contain_all_texts,
    "available_actions and expert_action change nothing": rules.queries_change_nothing,
    "the expert solves the tasks it acts on": rules.the_expert_solves_its_tasks,
    "a step outside an episode is an error": rules.a_step_outside_an_episode_is_an_error,
    "garbage and 1 MB actions never raise": rules.garbage_never_raises,
    "in-process and HTTP responses are identical": served.http_agrees_to_the_byte,
    "interleaved sessions do not leak": served.sessions_do_not_leak,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one rule."""

    rule: str
    passed: bool
    detail: str
    applied: bool = True
    """False if the rule does not apply to this environment."""


def check_environment(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    tasks_per_split: int = 6,
    sessions: int = 64,
) -> Iterator[Finding]:
    """Check every rule for an environment, by id or `module:Class`; yields a result for each.

    Raises `UnknownEnvironment` or `MissingExtra` if the environment is not available.
    """
    subject = Subject(env_id, dict(env_kwargs or {}), tasks_per_split, sessions)
    env_class(env_id)
    for text, rule in RULES.items():
        yield _apply(text, rule, subject)


def _apply(text: str, rule: Rule, subject: Subject) -> Finding:
    try:
        return Finding(text, True, rule(subject))
    except NotApplicable as reason:
        return Finding(text, True, str(reason), applied=False)
    except RuleBroken as broken:
        return Finding(text, False, str(broken))
    except Exception as error:
        # The environment's own code failed where the rule did not look for it.
        return Finding(text, False, f"{type(error).__name__}: {error}")
