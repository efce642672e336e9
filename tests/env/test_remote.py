"""RemoteEnv: the same episodes as the class itself, and clear failures."""

import json
import sys

import gymnasium
import pytest

from agentgym_env import AgentGymError, RemoteEnv, RemoteVectorEnv
from agentgym_env.errors import (
    BadRequest,
    EnvironmentFault,
    EnvironmentLost,
    EpisodeOver,
    ServerStartFailed,
    UnknownEnvironment,
    UnknownTask,
)
from agentgym_env.remote import make_env
from hosting import GUESS, TROUBLE
from worlds import Guess


@pytest.fixture
def env(serve):
    """A Guess behind a server of this process."""
    env = RemoteEnv(GUESS, serve().address)
    yield env
    env.close()


def test_the_same_calls_give_the_same_bytes_here_and_there(env):
    def play(env: gymnasium.Env) -> str:
        told = [env.reset(seed=11), env.step("a\ud800"), env.reset(), env.reset()]
        told += [env.reset(options={"split": "test"}), env.step("9"), env.step("8")]
        told += [env.reset(seed=12, options={"task": "4"}), env.step("4")]
        return json.dumps(told)

    assert play(env) == play(Guess())


def test_an_unseeded_first_reset_still_tells_the_seed_it_drew(env):
    observation, info = env.reset()
    again, _ = Guess().reset(seed=info["seed"], options={"task": info["task"]})
    assert observation == again


def test_the_spaces_instruction_and_tasks_are_the_worlds(env):
    assert env.observation_space == Guess.observation_space
    assert env.action_space == Guess.action_space
    assert env.instruction == Guess.instruction
    assert env.tasks.splits == Guess.tasks.splits


def test_the_expert_plays_across_the_wire(env):
    env.reset(seed=0, options={"task": "7"})
    assert env.step(env.expert_action())[1:3] == (1.0, True)


def test_misuse_raises_what_it_raises_here(env):
    for call in (lambda: env.step("1"), env.expert_action):
        with pytest.raises(EpisodeOver):
            call()
    with pytest.raises(BadRequest, match=r"\['taks'\] are not known"):
        env.reset(options={"taks": "1"})
    with pytest.raises(UnknownTask, match="no task 'x' among 9"):
        env.reset(options={"task": "x"})
    with pytest.raises(gymnasium.error.Error):
        env.reset(seed=-1)
    env.reset(seed=0)
    with pytest.raises(BadRequest, match="got NoneType"):
        env.step(None)


def test_rendering_is_the_last_observation(serve):
    env = RemoteEnv(GUESS, serve().address, render_mode="ansi")
    assert env.reset(seed=0)[0] == env.render()
    assert env.step("0")[0] == env.render() == "'0' is wrong."
    env.close()
    with pytest.raises(BadRequest, match="no render_mode 'human'"):
        RemoteEnv(GUESS, render_mode="human")


def test_a_server_of_another_environment_is_refused(serve):
    address = serve().address
    with pytest.raises(BadRequest, match=f"serves {GUESS}, not {TROUBLE}"):
        RemoteEnv(TROUBLE, address)


def test_an_unknown_option_of_an_environment_is_named_with_those_there_are():
    with pytest.raises(AgentGymError) as error:
        RemoteVectorEnv("agentgym/Search-v0", 1, "inprocess", topks=3)
    said = str(error.value)
    assert "unknown option topks of agentgym/Search-v0; did you mean topk?" in said
    assert "corpus" in said and "Traceback" not in said


@pytest.mark.parametrize("server", [5, 2.5, b"http://localhost", [5], {"a": 1}])
@pytest.mark.parametrize("make", [RemoteEnv, RemoteVectorEnv])
def test_a_server_of_another_type_is_refused(make, server):
    with pytest.raises(BadRequest, match=r"a server (is an address|address must look like)"):
        make(GUESS, server=server)


@pytest.mark.parametrize("make", [RemoteEnv, RemoteVectorEnv])
@pytest.mark.parametrize(
    "limits", [{"timeout_s": "x"}, {"timeout_s": float("nan")}, {"timeout_s": 0}, {"retries": -1},
               {"retries": 1.5}, {"retries": True}],
)  # fmt: skip
def test_limits_of_calls_are_checked(make, limits):
    with pytest.raises(BadRequest, match=f"{next(iter(limits))} is a "):
        make(GUESS, server="http://127.0.0.1:9", **limits)


def test_a_vector_in_process_has_no_limits_of_calls():
    with pytest.raises(BadRequest, match="apply to servers only"):
        RemoteVectorEnv(GUESS, server="inprocess", timeout_s=5)


@pytest.mark.parametrize("name", ["timeout_s", "retries"])
def test_an_option_for_servers_is_named_as_such_in_process(name):
    with pytest.raises(BadRequest, match=f"{name} applies to servers only"):
        make_env(GUESS, "inprocess", **{name: 5})


def test_an_environment_may_have_an_option_of_that_name(monkeypatch):
    class Retrying(Guess):
        def __init__(self, retries: int = 0, render_mode: str | None = None) -> None:
            super().__init__(render_mode=render_mode)
            self.retries = retries

    monkeypatch.setattr(sys.modules["worlds"], "Guess", Retrying)
    assert make_env(GUESS, "inprocess", retries=5).retries == 5


def test_an_unknown_environment_is_refused_before_anything_starts():
    with pytest.raises(UnknownEnvironment):
        RemoteEnv("tests/Nothing-v0")


def test_closing_ends_the_session_and_twice_is_harmless(serve):
    server = serve()
    env = RemoteEnv(GUESS, server.address)
    env.reset(seed=0)
    assert len(server.host.table) == 1
    env.close()
    env.close()
    assert len(server.host.table) == 0
    with pytest.raises(BadRequest, match="closed"):
        env.reset(seed=0)


def test_a_session_that_ended_while_it_stood_idle_is_replaced_at_reset(serve):
    server = serve()
    env = RemoteEnv(GUESS, server.address)
    first, _ = env.reset(seed=0)
    server.host.table.shutdown()
    with pytest.raises(EnvironmentLost):
        env.step("1")
    assert env.reset(seed=0)[0] == first
    server.host.table.shutdown()
    assert env.reset(seed=0)[0] == first
    env.close()


def test_a_world_that_raises_is_its_own_fault():
    env = RemoteEnv(TROUBLE, "inprocess")
    env.reset(seed=0, options={"task": "fine"})
    with pytest.raises(EnvironmentFault, match="ZeroDivisionError"):
        env.step("raise")
    env.close()


@pytest.mark.parametrize(
    ("waited", "stepped"),
    [
        (False, False),
        *(pytest.param(*how, marks=pytest.mark.slow) for how in ((0, 1), (1, 0), (1, 1))),
    ],
)
def test_a_reset_replaces_a_killed_local_server_with_a_warning(
    caplog, monkeypatch, waited, stepped
):
    # On a busy machine a killed process takes longer to end.
    monkeypatch.setattr("agentgym_env.remote._ENDING_S", 60.0)
    # Other tests of this process may hold a server with the default settings.
    env, other = RemoteEnv(GUESS, retries=1, greeting="Hi"), RemoteEnv(GUESS, greeting="Hi")
    first, _ = env.reset(seed=3)
    old = env._local.process
    old.kill()
    if waited:
        old.wait()
    if stepped:
        with pytest.raises(EnvironmentLost):
            env.step("1")
        with pytest.raises(EnvironmentLost):
            env.step("1")
    with caplog.at_level("WARNING"):
        assert env.reset(seed=3)[0] == first
    warned = [r.message for r in caplog.records if "starting a new one" in r.message]
    assert len(warned) == 1 and "exit status -9" in warned[0]
    # The process's other environment shares the new server.
    assert other.reset(seed=3)[0] == first
    assert other._local.process is env._local.process is not old
    env.close()
    assert other.step("0")[0] == "'0' is wrong."
    other.close()


def test_a_world_that_takes_its_server_down_is_lost_and_each_reset_starts_it_once(monkeypatch):
    env = RemoteEnv(TROUBLE, retries=1)
    env.reset(seed=0, options={"task": "fine"})
    with pytest.raises(EnvironmentLost, match="check whether the server is running"):
        env.step("die")
    env._local.process.wait()
    with monkeypatch.context() as patched:
        patched.setattr("agentgym_env.launch.sys.executable", "/bin/false")
        with pytest.raises(ServerStartFailed):
            env.reset(options={"task": "fine"})
    assert env.reset(options={"task": "fine"})[0] == "What now?"
    env.close()
