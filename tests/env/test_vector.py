"""RemoteVectorEnv: Gymnasium's vector contract, with text and with failures."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agentgym_env import RemoteVectorEnv
from agentgym_env.errors import BadRequest, EnvironmentLost, EpisodeOver, UnknownTask
from hosting import GUESS, TROUBLE
from worlds import Guess, Trouble

MODES = [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


@pytest.fixture
def make(serve):
    """Makes vectors over one server of this process: `make(3, autoreset_mode=...)`."""
    made: list[RemoteVectorEnv] = []
    server = serve()

    def make(num_envs: int = 3, **settings) -> RemoteVectorEnv:
        made.append(RemoteVectorEnv(GUESS, num_envs, server.address, **settings))
        return made[-1]

    make.server = server
    yield make
    for envs in made:
        envs.close()


def plain(value):
    """Arrays as lists, so that two trees of them compare."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | np.ndarray):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize("mode", MODES)
def test_it_does_what_gymnasiums_vector_does(make, mode):
    ours = make(3, autoreset_mode=mode, max_episode_steps=4)

    def limited() -> gymnasium.Env:
        return gymnasium.wrappers.TimeLimit(Guess(), 4)

    theirs = SyncVectorEnv([limited] * 3, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] is mode
    assert plain(ours.reset(seed=5)) == plain(theirs.reset(seed=5))
    for turn in range(12):
        guess = str(1 + turn % 6)
        a, b = ours.step([guess] * 3), theirs.step((guess,) * 3)
        assert plain(a) == plain(b), turn
        assert a[0] in ours.observation_space
        ended = a[2] | a[3]
        if mode is AutoresetMode.DISABLED and ended.any():
            mask = {"reset_mask": ended}
            assert plain(ours.reset(options=dict(mask))) == plain(theirs.reset(options=dict(mask)))
    theirs.close()


def test_resets_are_disabled_by_default():
    envs = gymnasium.make_vec(GUESS, num_envs=2, server="inprocess")
    assert envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    envs.reset(seed=0, options={"task": "5"})
    assert envs.step(["5", "1"])[2].tolist() == [True, False]
    with pytest.raises(EpisodeOver, match=r"episodes \[0\] .*reset_mask"):
        envs.step(["5", "1"])
    envs.close()


def test_stepping_before_the_first_reset_is_refused(make):
    for mode in MODES:
        with pytest.raises(EpisodeOver):
            make(2, autoreset_mode=mode).step(["1", "1"])


def test_a_step_is_one_call(make):
    envs = make(64)
    envs.reset(seed=0)
    for _ in range(3):
        envs.step(["0"] * 64)
    metrics = make.server.host.handle("GET", "/metrics")[2].decode().splitlines()
    assert 'agentgym_requests_total{route="/v1/step"} 3' in metrics
    assert 'agentgym_requests_total{route="/v1/reset"} 1' in metrics
    assert 'agentgym_requests_total{route="/v1/sessions"} 1' in metrics
    assert "agentgym_steps_total 192" in metrics


def test_the_mask_resets_only_what_it_names(make):
    envs = make(3)
    first, _ = envs.reset(seed=0, options={"task": "5"})
    stepped = envs.step(["1"] * 3)[0]
    options = {"reset_mask": np.array([False, True, False]), "task": "7"}
    observations, infos = envs.reset(seed=1, options=options)
    assert "reset_mask" in options
    assert observations == (stepped[0], Guess().reset(seed=2, options={"task": "7"})[0], stepped[2])
    assert infos["_seed"].tolist() == [False, True, False]
    assert envs.step(["5", "7", "5"])[2].all() and first != observations


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        ([True, True], TypeError),
        (np.array([1, 0]), TypeError),
        (np.array([True]), ValueError),
        (np.array([False, False]), ValueError),
    ],
)
def test_a_mask_that_is_none_is_refused(make, mask, error):
    with pytest.raises(error, match="reset_mask"):
        make(2).reset(options={"reset_mask": mask})


def test_each_environment_can_have_its_own_task_and_seed(make):
    envs = make(3)
    _, infos = envs.reset(seed=[7, None, 9], options={"task": ["1", "8", "3"]})
    assert infos["task"].tolist() == ["1", "8", "3"]
    assert infos["seed"][0] == 7 and infos["seed"][2] == 9
    assert envs.expert_actions() == ["1", "8", "3"]
    assert envs.step(envs.expert_actions())[1].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda envs: envs.reset(seed=[1, 2]), ValueError),
        (lambda envs: envs.reset(options={"task": ["1"]}), BadRequest),
        (lambda envs: envs.reset(options={"tasks": "1"}), BadRequest),
        (lambda envs: envs.reset(options={"task": "x"}), UnknownTask),
        (lambda envs: envs.step(["1", "1"]), BadRequest),
        (lambda envs: envs.step("111"), BadRequest),
        (lambda envs: envs.step(["1", "1", 1]), BadRequest),
    ],
)
def test_what_makes_no_sense_is_refused(make, call, error):
    envs = make(3)
    envs.reset(seed=0)
    with pytest.raises(error):
        call(envs)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(BadRequest, match="at least 1, got 0"):
        RemoteVectorEnv(GUESS, 0, "inprocess")
    with pytest.raises(ValueError, match="Sometimes"):
        RemoteVectorEnv(GUESS, 1, "inprocess", autoreset_mode="Sometimes")


@pytest.mark.parametrize("limit", ["3", 0, 2.5, -5])
def test_an_invalid_time_limit_raises_the_error_of_gymnasium_make(limit):
    with pytest.raises((TypeError, ValueError)) as alone:
        gymnasium.wrappers.TimeLimit(Guess(), limit)
    with pytest.raises(alone.type, match=f"max_episode_steps .*, got {limit!r}"):
        RemoteVectorEnv(GUESS, 1, "inprocess", max_episode_steps=limit)


def test_the_horizon_truncates_and_a_reset_starts_the_count_again(make):
    envs = make(2, max_episode_steps=2)
    for _ in range(2):
        envs.reset(seed=0, options={"task": "5"})
        assert envs.step(["1", "1"])[3].tolist() == [False, False]
        *_, terminations, truncations, _ = envs.step(["5", "1"])
        assert terminations.tolist() == [True, False] and truncations.tolist() == [True, True]


def test_a_world_that_raises_loses_its_own_episode_only():
    envs = RemoteVectorEnv(TROUBLE, 3, "inprocess")
    envs.reset(seed=0, options={"task": "fine"})
    observations, rewards, terminations, truncations, infos = envs.step(["a", "raise", "c"])
    assert observations == ("You said a", "What now?", "You said c")
    assert np.isnan(rewards).tolist() == [False, True, False] and not terminations.any()
    assert truncations.tolist() == [False, True, False]
    assert infos["failure"].tolist() == [None, "environment_error", None]
    assert "ZeroDivisionError" in infos["error"][1]
    assert infos["_failure"].tolist() == [False, True, False]
    envs.reset(options={"task": "fine", "reset_mask": truncations})
    assert not envs.step(["a", "b", "c"])[3].any()
    envs.close()


def test_an_episode_that_cannot_start_is_told_at_the_reset_and_lost_at_the_step():
    envs = RemoteVectorEnv(TROUBLE, 2, "inprocess")
    observations, infos = envs.reset(options={"task": ["fine", "broken"]})
    assert observations == ("What now?", "")
    assert infos["failure"].tolist() == [None, "environment_error"]
    _, _, _, truncations, infos = envs.step(["a", "b"])
    assert truncations.tolist() == [False, True]
    assert infos["failure"].tolist() == [None, "environment_error"]
    assert infos["at_fault"].tolist() == [None, "environment"]
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_of_two_servers_one_killed_loses_exactly_its_half(serve, mode):
    dying, living = serve(), serve()
    envs = RemoteVectorEnv(
        GUESS, 8, [dying.address, living.address], retries=0, autoreset_mode=mode
    )
    envs.reset(seed=0, options={"task": "5"})
    assert [len(server.host.table) for server in (dying, living)] == [4, 4]
    doomed = np.array([s.address == dying.address for s in envs._sessions])
    dying.stop()
    observations, rewards, terminations, truncations, infos = envs.step(["1"] * 8)
    assert truncations.tolist() == doomed.tolist() and not terminations.any()
    assert np.isnan(rewards).tolist() == doomed.tolist() and not np.nansum(rewards)
    info = infos["final_info"] if mode is AutoresetMode.SAME_STEP else infos
    assert [f == "environment_lost" for f in info["failure"]] == doomed.tolist()
    assert [party == "server" for party in info["at_fault"]] == doomed.tolist()
    assert all("cannot be reached" in info["error"][i] for i in np.flatnonzero(doomed))
    if mode is AutoresetMode.DISABLED:
        envs.reset(options={"reset_mask": doomed})
    observations, _, _, truncations, _ = envs.step(["1"] * 8)
    assert not truncations.any() and len(living.host.table) == 8
    assert observations in envs.observation_space
    envs.close()


def test_when_every_server_is_gone_a_step_tells_and_a_reset_raises(serve):
    server = serve()
    envs = RemoteVectorEnv(GUESS, 2, server.address, retries=0)
    envs.reset(seed=0)
    server.stop()
    assert envs.step(["1", "1"])[3].all()
    with pytest.raises(EnvironmentLost):
        envs.reset(seed=0)
    envs.close()


def test_a_reset_opens_again_what_ends_between_opening_and_reset(make):
    envs = make(4)
    envs.reset(seed=0, options={"task": "5"})
    table = make.server.host.table
    reset, ends = table.reset, 3

    def end_first(requests):
        nonlocal ends
        if ends:
            ends -= 1
            table.shutdown()
        return reset(requests)

    table._answers["/v1/reset"] = end_first
    _, infos = envs.reset(seed=0, options={"task": "5"})
    assert ends == 0 and "error" not in infos
    assert envs.step(["5"] * 4)[1].tolist() == [1.0] * 4


def test_closing_ends_the_sessions_and_twice_is_harmless(make):
    envs = make(5)
    envs.reset(seed=0)
    assert len(make.server.host.table) == 5
    envs.close()
    envs.close()
    assert len(make.server.host.table) == 0


def test_rendering_gives_the_last_observations(make):
    envs = make(2, render_mode="ansi")
    assert envs.reset(seed=0)[0] == envs.render()
    assert make(2).render() is None


def test_the_world_is_described(make):
    envs = make(1)
    assert envs.instruction == Guess.instruction
    assert envs.tasks.splits == Guess.tasks.splits
    assert Trouble.instruction != envs.instruction


@pytest.mark.parametrize(
    "mode",
    [
        AutoresetMode.SAME_STEP,
        *(pytest.param(mode, marks=pytest.mark.slow) for mode in MODES[:2]),
    ],
)
def test_a_killed_local_server_is_replaced_once_at_the_reset(mode, caplog):
    # Other tests of this process may hold a server with the default settings.
    envs = RemoteVectorEnv(GUESS, 3, retries=1, autoreset_mode=mode, greeting="Hi")
    envs.reset(seed=0, options={"task": "5"})
    old = envs._local.process
    old.kill()
    old.wait()
    with caplog.at_level("WARNING"):
        _, rewards, terminations, truncations, infos = envs.step(["1"] * 3)
        assert np.isnan(rewards).all() and truncations.all() and not terminations.any()
        lost = infos["final_info"] if mode is AutoresetMode.SAME_STEP else infos
        assert set(lost["failure"]) == {"environment_lost"}
        assert set(lost["at_fault"]) == {"server"}
        assert (envs._local.process is old) == (mode is not AutoresetMode.SAME_STEP)
        if mode is AutoresetMode.DISABLED:
            envs.reset(seed=0, options={"task": "5"})
        _, rewards, _, truncations, infos = envs.step(["1"] * 3)
    assert rewards.tolist() == [0.0] * 3 and not truncations.any()
    assert "error" not in infos
    assert envs._local.process is not old and envs._local.process.poll() is None
    assert [record.message for record in caplog.records if "starting a new one" in record.message]
    envs.close()


def test_a_server_replaced_at_a_masked_reset_loses_the_other_episodes():
    envs = RemoteVectorEnv(GUESS, 2, retries=0, greeting="Hi")
    envs.reset(seed=0, options={"task": "5"})
    envs._local.process.kill()
    envs._local.process.wait()
    envs.reset(options={"reset_mask": np.array([True, False]), "task": "5"})
    _, rewards, terminations, truncations, infos = envs.step(["5", "5"])
    assert (rewards[0], terminations[0]) == (1.0, True)
    assert np.isnan(rewards[1]) and truncations[1]
    assert "the local server ended during the episode" in infos["error"][1]
    envs.reset(options={"reset_mask": np.array([True, True]), "task": "5"})
    assert envs.step(["5", "5"])[1].tolist() == [1.0, 1.0]
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_gymnasiums_statistics_show_lost_episodes_as_nan_and_recover(mode):
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(
        RemoteVectorEnv(TROUBLE, 2, "inprocess", autoreset_mode=mode, max_episode_steps=2)
    )
    options = {"task": "fine", "split": "train"}
    envs.reset(seed=1, options=options)
    envs.step(["a", "a"])
    _, _, _, truncations, infos = envs.step(["a", "raise"])
    assert truncations.all()
    assert plain(infos["episode"]["r"])[0] == 0.0 and np.isnan(infos["episode"]["r"][1])
    lost = infos["final_info"] if mode is AutoresetMode.SAME_STEP else infos
    assert lost["_error"].tolist() == [False, True]
    assert [bool(np.isnan(total)) for total in envs.return_queue] == [False, True]
    envs.reset(seed=1, options=options)
    envs.step(["a", "a"])
    _, _, _, truncations, infos = envs.step(["a", "a"])
    assert truncations.all() and infos["episode"]["r"].tolist() == [0.0, 0.0]
    envs.close()
