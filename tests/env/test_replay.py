"""Replaying stored episodes: agreement to the last character, and the first difference told."""

from __future__ import annotations

import msgspec
import pytest

import hostile
import worlds
from agentgym_env.cli.replay import describe, parse_address
from agentgym_env.conformance.subject import write_script
from agentgym_env.errors import BadRequest
from agentgym_env.registry import env_class
from agentgym_env.replay import replay_episode
from agentgym_env.run_store import RunStore
from agentgym_env.trajectory import Trajectory, Turn
from commands import agentgym

TEXTCRAFT = "agentgym/TextCraft-v0"


def recorded(env_id: str, task_number: int = 0, turns: int = 6, seed: int = 7, **kwargs):
    """(the environment, an episode of it: the expert's actions mixed with others)."""
    env = env_class(env_id)(**kwargs)
    task = env.tasks.split("test")[task_number]
    script = write_script(env, task, seed, turns)
    observation, info = env.reset(seed=seed, options={"task": task})
    played, terminated = [], False
    for action in script.actions:
        told, reward, terminated, _, info = env.step(action)
        played.append(Turn(f"I do {action}", action, told, reward, info))
    outcome = ("success" if info["success"] else "failure") if terminated else "horizon"
    return env, Trajectory(
        env=env_id, task=task, seed=seed, instruction="", observation=observation, turns=played,
        outcome=outcome, policy="p", horizon=turns, success=info["success"], score=info["score"],
    )  # fmt: skip


def changed(trajectory: Trajectory, number: int, **fields) -> Trajectory:
    turns = list(trajectory.turns)
    turns[number - 1] = msgspec.structs.replace(turns[number - 1], **fields)
    return msgspec.structs.replace(trajectory, turns=turns)


@pytest.mark.parametrize("world", ["TextCraft", "BabyAI", "Search", "WebArena"])
def test_a_deterministic_world_answers_the_same_again(world):
    env, trajectory = recorded(f"agentgym/{world}-v0")
    other = env_class(trajectory.env)()
    try:
        replayed = replay_episode(other, trajectory)
        assert (replayed.turns, replayed.difference) == (len(trajectory.turns), None)
        assert replayed.turns > 0
    finally:
        env.close()
        other.close()


@pytest.fixture(scope="module")
def textcraft():
    return recorded(TEXTCRAFT, task_number=95, turns=4)


def test_the_first_difference_is_found_and_told(textcraft):
    env, trajectory = textcraft
    same = replay_episode(env, trajectory)
    assert same.difference is None
    found = replay_episode(env, changed(trajectory, 3, observation="something else\x1b[2J"))
    assert (found.turns, found.difference.turn, found.difference.what) == (3, 3, "observation")
    lines = list(describe(found.difference))
    assert lines[0].startswith("  turn 3, after ")
    assert any(line.startswith("  - something else\\x1b[2J") for line in lines)
    paid = replay_episode(env, changed(trajectory, 2, reward=0.125)).difference
    assert (paid.turn, paid.what, paid.stored, paid.replayed) == (2, "reward", "0.125", "0.0")
    first = replay_episode(env, msgspec.structs.replace(trajectory, observation="x")).difference
    assert (first.turn, first.what) == (0, "observation")
    other_seed = replay_episode(env, msgspec.structs.replace(trajectory, seed=8)).difference
    assert other_seed.turn == 0


def test_how_an_episode_ended_is_compared_too(textcraft):
    env, trajectory = textcraft
    assert trajectory.outcome == "horizon"
    ended = msgspec.structs.replace(trajectory, outcome="failure")
    found = replay_episode(env, ended).difference
    assert (found.what, found.stored, found.replayed) == ("end", "it ended", "the episode goes on")
    guess = worlds.Guess()
    first, _ = guess.reset(seed=3, options={"task": "7"})
    turns = [Turn("7", "7", "Right!", 1.0), Turn("1", "1", "'1' is wrong.")]
    beyond = Trajectory("e", "7", 3, "", first, turns, "horizon", "p", 9, success=True)
    found = replay_episode(guess, beyond).difference
    assert (found.turn, found.what, found.replayed) == (2, "end", "it had ended")
    short = msgspec.structs.replace(beyond, turns=turns[:1], outcome="success", success=False)
    assert replay_episode(guess, short).difference.what == "success"


def test_turns_that_never_reached_the_world_are_passed_over(textcraft):
    env, trajectory = textcraft
    plan = Turn("I shall", "", "Go on.")
    refused = Turn("no action", "", "Write one.", info={"invalid_action": True})
    unanswered = Turn("late", "inventory", "")
    turns = [plan, trajectory.turns[0], refused, *trajectory.turns[1:], unanswered]
    longer = msgspec.structs.replace(trajectory, turns=turns)
    replayed = replay_episode(env, longer)
    assert (replayed.turns, replayed.difference) == (len(trajectory.turns), None)


def test_an_episode_that_an_agent_began_again_is_begun_again(textcraft):
    env, trajectory = textcraft
    earlier = [
        msgspec.structs.replace(turn, info={**turn.info, "reward_of_earlier_trial": turn.reward})
        for turn in trajectory.turns
    ]
    lesson = Turn("Next time I hurry.", "", trajectory.observation)
    twice = msgspec.structs.replace(trajectory, turns=[*earlier, lesson, *trajectory.turns])
    replayed = replay_episode(env, twice)
    assert (replayed.turns, replayed.difference) == (2 * len(trajectory.turns), None)


def cli(folder, *words: str, status: int) -> str:
    ran = agentgym("replay", *words, folder=folder)
    assert ran.status == status, ran.text
    return ran.text


@pytest.fixture
def store(tmp_path, textcraft):
    _, trajectory = textcraft
    made = RunStore.create(tmp_path / "run", {"config": {"env_kwargs": {}}})
    lost = msgspec.structs.replace(trajectory, turns=[], outcome="environment_lost")
    wrong = changed(trajectory, 2, observation="Got 2 of it")
    made.append_trajectories("eval", [trajectory, wrong, lost])
    return made


def test_the_command_says_what_differs_and_its_status_too(store, tmp_path):
    said = cli(tmp_path, "run", status=1)
    assert "run/trajectories/eval.jsonl:2 differs" in said and "turn 2" in said
    assert "1 of 2 episodes agree" in said and "1 were lost" in said
    assert "1 of 1 episodes agree" in cli(tmp_path, "run/trajectories/eval.jsonl:1", status=0)
    assert "0 of 1" in cli(tmp_path, "run/trajectories/eval.jsonl:2", status=1)
    task = store.trajectories("eval")[0][0].task
    assert "1 of 1" in cli(tmp_path, "run", "--task", task, "--index", "1", status=0)
    assert "no episode" in cli(tmp_path, "run", "--task", "none", status=2)
    assert "no run in nowhere" in cli(tmp_path, "nowhere", status=2)


def test_a_line_that_was_cut_off_is_told_and_the_others_are_replayed(store, tmp_path):
    path = store.path / "trajectories" / "eval.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(whole[0] + whole[1][:200])
    said = cli(tmp_path, "run", status=1)
    assert "eval.jsonl:2 cannot be read" in said
    assert "1 of 1 episodes agree" in said and "1 lines cannot be read" in said


def test_the_runs_own_settings_of_the_environment_are_used(tmp_path):
    env, trajectory = recorded("agentgym/BabyAI-v0", legacy=True)
    env.close()
    store = RunStore.create(tmp_path / "run", {"evaluation": {"env_kwargs": {"legacy": True}}})
    store.append_trajectories("p", [trajectory])
    assert "1 of 1 episodes agree" in cli(tmp_path, "run", status=0)
    assert "differs" in cli(tmp_path, "run", "--env-kwargs", "{}", status=1)


def test_a_file_chooses_no_code_to_import_and_its_texts_are_text(
    tmp_path, worlds_folder, monkeypatch
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    task = hostile.Rude.tasks.split("train")[0]
    env = hostile.Rude()
    first, _ = env.reset(seed=0, options={"task": task})
    turn = Turn("\x1b[2J", "\x1b[2Jx", "\x1b[2J\u202e[bold]" + "a" * 2**20)
    store = RunStore.create(tmp_path / "run", {})
    store.append_trajectories(
        "p", [Trajectory("hostile:Rude", task, 0, "", first, [turn], "horizon", "p", 9)]
    )
    said = cli(worlds_folder, str(store.path), status=2)
    assert "names code, addresses or files" in said and "env='hostile:Rude'" in said
    said = cli(worlds_folder, str(store.path), "--env", "hostile:Rude", status=1)
    assert "\\x1b[2J[bold]" in said and "after '\\\\x1b[2Jx'" in said
    for sign in ("\x1b[2J", "\u202e", "\u2028"):
        assert sign not in said
    assert len(said) < 5000


def test_addresses(tmp_path):
    (tmp_path / "x.jsonl").write_text("")
    assert parse_address(f"{tmp_path}/x.jsonl:12").line == 12
    assert parse_address(f"{tmp_path}/x.jsonl").line is None
    with pytest.raises(BadRequest, match="no file"):
        parse_address(f"{tmp_path}/y.jsonl:1")
    RunStore.create(tmp_path / "run", {})
    with pytest.raises(BadRequest, match="has no episodes"):
        parse_address(f"{tmp_path}/run")
