"""The conformance suite: what every environment promises, each promise one rule.

```python
from agentgym_env.conformance import check_environment

def test_it_keeps_every_promise():
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
"""Raises `RuleBroken` or `NotApplicable`, or gives a word on what was looked at."""

RULES: Final[dict[str, Rule]] = {
    "Gymnasium's checker passes without a warning": rules.passes_gymnasiums_checker,
    "the splits share no task": rules.splits_are_disjoint,
    "a seed and a task give the same episode": rules.a_seed_gives_the_same_episode,
    "so they do in other processes": rules.processes_agree,
    "the spaces hold every observation and action": rules.spaces_hold_what_is_said,
    "asking for actions or advice changes nothing": rules.asking_changes_nothing,
    "the expert solves what it claims": rules.the_expert_keeps_its_word,
    "a step outside an episode is an error": rules.a_step_outside_an_episode_is_an_error,
    "garbage and 1 MB actions never raise": rules.garbage_never_raises,
    "in-process and HTTP agree to the byte": served.http_agrees_to_the_byte,
    "interleaved sessions do not leak": served.sessions_do_not_leak,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule found."""

    rule: str
    passed: bool
    detail: str
    applied: bool = True
    """False where the rule is about something this environment does not have."""


def check_environment(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    tasks_per_split: int = 6,
    sessions: int = 64,
) -> Iterator[Finding]:
    """Apply every rule to an environment, by id or `module:Class`; a finding as each is done.

    Raises `UnknownEnvironment` or `MissingExtra` where there is nothing to check.
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
