"""What an author of an environment is told about a mistake."""

from __future__ import annotations

import pytest

from agentgym_env import TaskSet, TextEnv
from agentgym_env.causes import in_one_line
from agentgym_env.errors import BadRequest, EnvironmentFault, UnknownEnvironment
from agentgym_env.registry import construct, env_class


class Door(TextEnv):
    """A door that a word opens."""

    instruction = "Open the door."
    tasks = TaskSet({"train": ["sesame"]})

    def _reset(self, task):
        return "A door."

    def _step(self, action):
        return "It opens.", 1.0, True


def test_a_constructor_need_not_know_the_render_mode():
    class Sized(Door):
        def __init__(self, size: int = 3) -> None:
            super().__init__()
            self.size = size

    env = construct(Sized, {"size": 5}, "ansi")
    assert (env.size, env.render_mode) == (5, "ansi")
    env.reset(seed=0)
    assert env.render() == "A door."
    with pytest.raises(BadRequest, match="no render_mode 'human'"):
        construct(Sized, {}, "human")


def test_a_constructor_that_calls_no_other_is_named():
    class Bare(Door):
        def __init__(self) -> None:
            self.size = 3

    with pytest.raises(EnvironmentFault, match=r"Bare.__init__ must call super\(\).__init__\(\)"):
        construct(Bare, {})


@pytest.mark.parametrize("first", [None, ("A door.", {})])
def test_a_first_observation_that_is_no_text_is_named(first):
    class Wrong(Door):
        def _reset(self, task):
            return first

    kind = type(first).__name__
    with pytest.raises(EnvironmentFault, match=f"Wrong._reset returned a {kind}; return the obs"):
        Wrong().reset(seed=0)


@pytest.mark.parametrize(
    "result",
    [
        None, "It opens.", ("It opens.", 1.0), ("It opens.", 1.0, True, False, {}),
        ("It opens.", True, 1.0), ("It opens.", "1", True), (None, 1.0, True),
    ],
)  # fmt: skip
def test_a_result_of_another_form_is_named(result):
    class Wrong(Door):
        def _step(self, action):
            return result

    env = Wrong()
    env.reset(seed=0)
    with pytest.raises(EnvironmentFault, match=r"Wrong._step returned .*return \(observation, rew"):
        env.step("sesame")


def test_a_package_that_a_module_needs_is_named(tmp_path, monkeypatch):
    (tmp_path / "needy.py").write_text("import nothing_like_it\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnknownEnvironment, match="needs nothing_like_it, which is not inst"):
        env_class("needy:Door")
    with pytest.raises(UnknownEnvironment, match="Name a module that is installed"):
        env_class("nowhere_at_all:Door")


def test_an_exception_of_the_authors_code_becomes_a_line_with_its_place():
    with (
        pytest.raises(EnvironmentFault, match=r"Door: ZeroDivisionError: .*\(.*mistakes.py:\d+\)"),
        in_one_line(f"{__name__}:Door", "Door"),
    ):
        _ = 1 / 0
    with pytest.raises(BadRequest, match=r"^as it is$"), in_one_line("x:Door", "Door"):
        raise BadRequest("as it is")
