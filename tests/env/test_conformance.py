"""The conformance suite: a sound environment passes, and every rule can fail."""

import random
from pathlib import Path
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

import faulty
from agentgym_env.conformance import RULES, check_environment
from agentgym_env.conformance.calls import arguments_of
from agentgym_env.conformance.changes import changed
from agentgym_env.conformance.subject import NotApplicable, RuleBroken, Subject
from agentgym_env.errors import UnknownEnvironment
from agentgym_env.tool_env import ToolEnv, tool
from commands import agentgym

FAULTY = Path(faulty.__file__)
GYMNASIUM = "Gymnasium's checker passes without a warning"
SEEDED = "a seed and a task determine the episode"
PROCESSES = "other processes give the same episode"
SPACES = "the spaces contain every observation and action"
QUERIES = "available_actions and expert_action change nothing"
EXPERT = "the expert solves the tasks it acts on"
AFTER_OTHERS = "the expert can be asked after other actions"
OUTSIDE = "a step outside an episode is an error"
GARBAGE = "garbage and 1 MB actions never raise"
CALLS = "calls of tools never raise"
CHANGED = "actions with changed words never raise"
FAILING = "failing episodes can be played to the end"
LISTED = "available actions are valid"
ONE_ID = "each task has one id"
HIDDEN = "the first observation does not contain the answer"
FARMED = "rewards cannot be farmed"
HTTP = "in-process and HTTP responses are identical"
LEAKS = "interleaved sessions do not leak"
VALID = "the class and its tasks are valid"
BOUNDS = "observations are short and steps are fast"


def findings(name: str, **settings):
    return {f.rule: f for f in check_environment(f"faulty:{name}", **settings)}


def finding_of(name: str, rule: str, **settings):
    """The finding of one rule; later rules are not applied."""
    found = check_environment(f"faulty:{name}", **settings)
    return next(finding for finding in found if finding.rule == rule)


@pytest.fixture
def apply_only(monkeypatch):
    """Leaves only the named rules; others start processes."""

    def leave(*names: str) -> None:
        kept = {name: rule for name, rule in RULES.items() if name in (VALID, *names)}
        monkeypatch.setattr("agentgym_env.conformance.RULES", kept)

    return leave


def test_a_sound_environment_keeps_every_promise_and_the_command_exits_with_0():
    # A busy machine may stop a process for seconds in the middle of a step.
    ran = agentgym("check", "faulty:Sound", "--max-step-time", "60", "--time-limit", "3600")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    for line, rule in zip(lines, RULES, strict=True):
        assert line.startswith(f"ok   {rule}: "), line
    assert "ok   interleaved sessions do not leak: 64 sessions" in lines


def test_a_rule_that_does_not_apply_to_an_environment_says_why():
    with pytest.raises(NotApplicable, match="it has no expert"):
        RULES[EXPERT](Subject("faulty:NoExpert"))


@pytest.mark.slow
def test_what_an_environment_does_not_have_is_not_counted_against_it():
    found = findings("NoExpert", sessions=4)
    expert = found[EXPERT]
    assert (expert.passed, expert.applied, expert.detail) == (True, False, "it has no expert")
    assert all(f.passed for f in found.values())


FAILURES = [
    ("NarrowSpace", GYMNASIUM, "observation"),
    ("NoDefaultSplit", "the splits are disjoint", "default_split 'training' names no task"),
    ("GlobalRandom", SEEDED, "in another order"),
    ("HashOrder", PROCESSES, "hash seed"),
    ("ProcessBound", PROCESSES, "hash seed 1"),
    ("ProcessBound", HTTP, "over HTTP"),
    ("NarrowActions", SPACES, "yes"),
    ("DrawsWhenAsked", QUERIES, "when it is queried"),
    ("BadExpert", EXPERT, "gives up after 1 turns"),
    ("GoesOnAfterTheEnd", OUTSIDE, "EpisodeOver"),
    ("RaisesOnNothing", GARBAGE, "nothing raises IndexError"),
    ("EchoesTwice", GARBAGE, "cut what is quoted"),
    ("SharedCount", LEAKS, "among 8 sessions"),
    ("RaisesWhenMade", VALID, "OSError: no disc"),
    ("PlainDict", VALID, "tasks is a dict; use TaskSet"),
    ("BadAlias", VALID, "the alias 'first' names no task: 'z'"),
    ("NoStep", VALID, "the class has no _step"),
    ("NoText", GYMNASIUM, "NoText._step returned (None, 0.0, False)"),
    ("OnlyTrain", "tasks are held out for evaluation", "every task is in 'train'"),
    ("NotANumberLate", FAILING, "gave the reward nan; rewards, scores and details are finite"),
    ("RaisesLate", FAILING, "IndexError: list index out of range (task 'a', turn 16)"),
    ("UnknownPlace", CHANGED, "ValueError: invalid literal for int()"),
    ("HugeNumber", CHANGED, "OverflowError"),
    ("MissingWord", CHANGED, "IndexError"),
    ("UpperCase", CHANGED, "KeyError: 'Go'"),
    ("Hangs", CHANGED, "TimeoutError: it takes longer than 3 s"),
    ("InvalidListed", LISTED, "\"maybe\" is available in task 'a', and reported as invalid"),
    ("TwinAcrossSplits", ONE_ID, "'3' (train) and '5' (test) are one task"),
    ("NamesTheAnswer", HIDDEN, "names the answer"),
    ("AnswerInTheInfo", HIDDEN, "contains the answer: 'ball' is"),
    ("SolutionInTheObservation", HIDDEN, "contains the expert's 2 actions in order"),
    ("OneTaskUnsolved", EXPERT, "the expert fails on 1 of 65 tasks: task 't37'"),
    (
        "ExpertRaises",
        EXPERT,
        "1 of 65 tasks: ZeroDivisionError: division by zero (task 't37', turn 1",
    ),
    ("ExpertOnlyOnItsWay", AFTER_OTHERS, "RuntimeError: generator raised StopIteration"),
    ("DividesInATool", CALLS, "ZeroDivisionError: integer division or modulo by zero (task "),
    ("PaysAgain", FARMED, "without success"),
    ("PaysForAProgressTwice", FARMED, "without success"),
]
"""Environment, the rule that it breaks, and a part of what is reported."""
WARNINGS = [
    ("SometimesInvalid", LISTED, 'sometimes reported as invalid, such as "say no"'),
    ("TwinInOneSplit", ONE_ID, "'0' (train) and '2' (train) are one task"),
    ("ShowsTheAnswer", HIDDEN, "in the first observation of every task"),
    ("LongObservation", BOUNDS, "an observation is longer than 32000 characters"),
    ("SlowStep", BOUNDS, "a step takes longer than 3 s"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "broken", "reason"), FAILURES)
def test_a_broken_promise_is_found(name, broken, reason):
    finding = finding_of(name, broken, sessions=8)
    assert not finding.passed and not finding.warning and reason in finding.detail
    assert finding.place is not None and finding.place.rpartition(":")[2].isdigit()
    assert Path(finding.place.rpartition(":")[0]).resolve() == FAULTY


def test_a_cause_in_a_generator_is_shown_where_it_arose(apply_only):
    apply_only(AFTER_OTHERS)
    finding = finding_of("ExpertOnlyOnItsWay", AFTER_OTHERS, sessions=2)
    assert finding.place.endswith(line_of('yield next(word for word in ["yes"]'))
    assert "(task " in finding.detail and finding.detail.endswith(", in the expert)")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "broken", "reason"), WARNINGS)
def test_what_may_be_intended_is_a_warning(name, broken, reason):
    found = findings(name, sessions=4, max_step_s=3.0)
    assert found[broken].passed and found[broken].warning and reason in found[broken].detail
    assert [f.rule for f in found.values() if f.warning] == [broken]
    assert all(f.passed for f in found.values())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("empty", "a TaskSet needs at least one split with one task"),
        ("numbers", "task ids are strings, got 1 in split 'train'"),
        ("twice", "task 'a' is listed twice"),
        ("across", "task 'a' is listed twice: in split 'train' and in 'test'"),
        ("no list", "'int' object is not iterable"),
    ],
)
def test_invalid_tasks_are_one_finding(kind, message):
    found = list(check_environment("faulty:BadTasksWhenMade", {"kind": kind}))
    assert [f.rule for f in found] == list(RULES)
    failed = [f for f in found if not f.passed]
    assert [f.rule for f in failed] == [VALID] and message in failed[0].detail
    assert failed[0].place.endswith(line_of("self.tasks = TaskSet(splits[kind])"))
    assert {f.detail for f in found[1:]} == {f"not checked: see {VALID!r} above"}


def test_a_module_that_fails_on_import_is_one_finding():
    found = list(check_environment("faulty_import:ListedTwice"))
    assert [f.rule for f in found if not f.passed] == [VALID]
    assert "task 'a' is listed twice" in found[0].detail
    assert found[0].place.endswith("faulty_import.py:10")


def line_of(text: str) -> str:
    """The file and line of the only place with this text."""
    lines = FAULTY.read_text(encoding="utf-8").splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if text in line)
    return f"{FAULTY.name}:{number}"


def test_a_finding_shows_the_authors_line_and_the_action(apply_only):
    apply_only(CHANGED)
    finding = finding_of("UnknownPlace", CHANGED, sessions=2)
    assert finding.place.endswith(line_of("int(words[1])"))
    assert finding.action.startswith("go ") and "(task " in finding.detail


@pytest.mark.slow
def test_a_cause_that_two_rules_find_is_reported_once():
    found = findings("RaisesOnNothing", sessions=2)
    failed = [f for f in found.values() if not f.passed]
    assert failed[0].rule == GARBAGE and "IndexError" in failed[0].detail
    assert all(f"see {GARBAGE!r} above" in f.detail for f in failed[1:])


def test_a_cause_is_reported_once():
    # Every rule that plays fails by the exception of the first.
    failed = [f for f in findings("NoText", sessions=2).values() if not f.passed]
    assert failed[0].rule == GYMNASIUM and len(failed) > 5
    assert all(f"see {GYMNASIUM!r} above" in f.detail for f in failed[1:])


def test_the_number_of_tasks_is_reported():
    few = Subject("faulty:OneTaskUnsolved", tasks_per_split=2)
    assert RULES[EXPERT](few) == "3 tasks solved"
    with pytest.raises(RuleBroken, match="fails on 1 of 65 tasks"):
        RULES[EXPERT](Subject("faulty:OneTaskUnsolved", tasks_per_split="all"))


def test_a_slow_environment_ends_with_a_hint_and_no_rule_starts_after_the_time_limit():
    found = findings("SlowWorld", time_limit_s=1, sessions=4)
    late = [f for f in found.values() if "the time limit of 1 s is over" in f.detail]
    assert late and not any(f.applied for f in late)
    assert found[BOUNDS].warning
    assert "per reset; use --tasks and --sessions to check less" in found[BOUNDS].detail


def test_changes_of_an_action_keep_its_form():
    assert changed("craft 2 planks") == [
        "craft 0 planks", "craft -1 planks", f"craft {10**30} planks",
        "xyzzy 2 planks", " 2 planks", "craft craft 2 planks",
        "craft xyzzy planks", "craft  planks", "craft 2 2 planks",
        "craft 2 xyzzy", "craft 2 ", "craft 2 planks planks",
        "2 craft planks", "craft planks 2",
        "CRAFT 2 PLANKS", "Craft 2 Planks", "craft 2 planks xyzzy",
    ]  # fmt: skip
    assert "click('xyzzy')" in changed("click('12')")


def test_an_unknown_environment_is_the_callers_mistake():
    with pytest.raises(UnknownEnvironment):
        list(check_environment("faulty:Nowhere"))


def test_the_command_prints_a_line_a_rule_and_exits_with_1():
    ran = agentgym("check", "faulty:BadAlias")
    lines = ran.out.splitlines()
    assert ran.status == 1 and len(lines) == len(RULES) + 1
    assert [line[:4] for line in lines[:-1]] == ["FAIL"] + ["n/a "] * (len(RULES) - 1)
    assert lines[-1] == f"1 of {len(RULES)} checks failed"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no environment 'nowhere'"),
        (["faulty:Sound", "--env-kwargs", "{"], "not valid JSON"),
        (["faulty:Sound", "--tasks", "some"], "--tasks must be a positive number or 'all'"),
    ],
)
def test_the_commands_own_mistakes_are_one_line(words, message):
    ran = agentgym("check", *words)
    assert ran.status == 2 and message in ran.err and ran.err.count("\n") == 1


class Item(Struct):
    """An argument of several values."""

    name: str
    amount: int = 1


class Every(ToolEnv):
    """A tool with every kind of argument."""

    @tool
    def use(
        self,
        number: Annotated[int, Meta(ge=3, lt=5)],
        share: Annotated[float, Meta(gt=0, le=1)],
        half: Annotated[float, Meta(ge=0.5, le=0.75)],
        colour: Literal["red", "green"],
        item: Item,
        names: Annotated[list[str], Meta(min_length=2)],
        pair: tuple[int, str],
        word: Annotated[str, Meta(min_length=3, max_length=4)],
        of: int | None = None,
        closely: bool = False,
    ) -> str:
        """Use it."""
        return "ok"


def test_drawn_arguments_follow_the_signature():
    env, drawn = Every(), []
    (spec,) = env.tool_specs()
    for seed in range(200):
        drawn.append(arguments_of(spec, random.Random(seed)))
        assert env._step(spec.action(drawn[-1]))[0] == "ok", drawn[-1]
    assert {d["number"] for d in drawn} == {3, 4} and len({d["word"] for d in drawn}) > 3
    assert {"of" in d for d in drawn} == {"closely" in d for d in drawn} == {True, False}
