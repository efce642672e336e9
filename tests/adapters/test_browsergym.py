"""BrowserGym both ways: its registered tasks are ours, and ours are its tasks, for AgentLab."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import gymnasium
import pytest

from agentgym_env.errors import BadRequest
from browsing import needs_chromium, what_browsergym_needs
from tests.adapters.native_road import TEXTCRAFT, expert_episodes

ROOT = Path(__file__).parents[2]
BROWSERGYM = "agentgym/BrowserGym-v0"


def in_chromium(test):
    return needs_chromium(pytest.mark.slow(test))


@pytest.fixture
def play(tmp_path, run):
    """Plays native episodes where BrowserGym is, against a server of ours."""
    from agentgym_servers.web.chromium.interpreter import web_environment, web_python

    needed = what_browsergym_needs(tmp_path)
    address = run("textcraft", "--port", "0").address()

    def play(episodes, how: str) -> list[dict]:
        told = json.dumps(
            [{"task": e.task, "seed": e.seed, "actions": e.actions} for e in episodes]
        )
        environment = web_environment()
        path = [environment["PYTHONPATH"], str(ROOT / "adapters"), str(ROOT / "tests" / "support")]
        script = "study_in_agentlab" if how in ("agentlab", "experiments") else "play_in_browsergym"
        played = subprocess.run(
            [web_python(), str(ROOT / "tests" / "support" / f"{script}.py"), address, how],
            env={
                **environment,
                "PYTHONPATH": os.pathsep.join(path),
                **needed,
            },
            input=told,
            capture_output=True,
            text=True,
            check=False,
        )
        for absent in ("browsergym.experiments", "agentlab"):
            if f"No module named '{absent}'" in played.stderr:
                pytest.skip(f"{absent} is not where the browser runs: make setup-web")
        assert played.returncode == 0, played.stderr
        return json.loads(played.stdout.splitlines()[-1])

    return play


@pytest.mark.slow
@in_chromium
def test_twenty_expert_episodes_in_browsergym_give_the_rewards_of_the_native_road(play):
    native = expert_episodes(20)
    for one, told in zip(native, play(native, "form"), strict=True):
        assert told["rewards"] == list(one.rewards) and told["terminated"]
        assert "You craft items in a Minecraft-like world" in told["goal"]
        shown = [" ".join(text.split()) for text in (one.first, *one.observations)]
        for text, page in zip(shown, told["told"], strict=True):
            assert " ".join(page.replace("\\n", " ").split()).startswith(text)


@pytest.mark.vital
@in_chromium
def test_an_action_may_be_a_message_to_the_user_too(play):
    native = expert_episodes(3)
    for one, told in zip(native, play(native, "chat"), strict=True):
        assert told["rewards"] == list(one.rewards) and told["terminated"]


@pytest.mark.slow
@in_chromium
@pytest.mark.parametrize(("loop", "count"), [("experiments", 2), ("agentlab", 20)])
def test_agentlab_runs_them_and_so_does_browsergyms_own_loop(play, loop, count):
    native = expert_episodes(count)
    for one, told in zip(native, play(native, loop), strict=True):
        assert told == {"cum_reward": 1.0, "terminated": True, "n_steps": len(one.actions)}


@in_chromium
@pytest.mark.parametrize("name", ["click-test", "enter-text", "choose-list", "click-checkboxes"])
def test_a_registered_miniwob_task_is_told_and_paid_as_our_own_world_of_it(name):
    theirs = gymnasium.make(BROWSERGYM, server="inprocess")
    ours = gymnasium.make("agentgym/MiniWoB-v0", server="inprocess")
    first, info = theirs.reset(seed=0, options={"task": f"miniwob.{name}/3"})
    assert first == ours.reset(seed=0, options={"task": f"{name}/3"})[0]
    assert theirs.unwrapped.tasks.category(info["task"]) == f"miniwob.{name}"
    ended = False
    while not ended:
        action = ours.unwrapped.expert_action()
        told, expected = theirs.step(action), ours.step(action)
        assert told[:4] == expected[:4]
        ended = told[2]
    assert told[4]["success"] and told[1] == 1.0
    theirs.close()
    ours.close()


@in_chromium
def test_an_open_ended_task_reaches_its_sites_and_no_others():
    from agentgym_servers.web.front.front import Front
    from agentgym_servers.web.front.origins import open_origins
    from agentgym_servers.web.sites.embedded import embedded

    session = embedded(0).session()
    with Front() as front:
        origins = open_origins(front, session)
        shop, forum = (origins.sites.bases[name] for name in ("shopping", "reddit"))
        env = gymnasium.make(
            BROWSERGYM, server="inprocess", family="openended", sites=[shop], train_seeds=0,
            task_kwargs={"start_url": f"{shop}/lamps.html", "goal": "Look around."},
        )  # fmt: skip
        assert env.unwrapped.tasks.splits == {"test": tuple(f"openended/{n}" for n in range(5))}
        observation, _ = env.reset(seed=0)
        assert (
            observation.startswith("# Goal\nLook around.") and f"URL: {shop}/lamps" in observation
        )
        assert "out of bounds" in env.step(f"goto('{forum}')")[0]
        assert f"URL: {shop}/tea.html" in env.step(f"goto('{shop}/tea.html')")[0]
        assert env.step("fly()")[1:3] == (0.0, False)
        *_, ended, _, info = env.step("report_infeasible('no')")
        assert ended and not info["success"]
        env.close()
        origins.close()
    session.close()


@needs_chromium
def test_a_family_that_is_not_there_is_named_with_what_to_install():
    with pytest.raises(BadRequest, match=r"no tasks of the family 'workarena'.*-workarena"):
        gymnasium.make(BROWSERGYM, server="inprocess", family="workarena")
    with pytest.raises(BadRequest, match="a family is a name"):
        gymnasium.make(BROWSERGYM, server="inprocess", family="../x")
    with pytest.raises(BadRequest, match="numbers of seeds"):
        gymnasium.make(BROWSERGYM, server="inprocess", train_seeds=0, test_seeds=0)


@needs_chromium
def test_every_registered_id_of_a_family_is_a_task(tmp_path, monkeypatch):
    for name, value in what_browsergym_needs(tmp_path).items():
        monkeypatch.setenv(name, value)
    env = gymnasium.make(
        BROWSERGYM, server="inprocess", family="webarena", train_seeds=0, test_seeds=1
    )
    ids = env.unwrapped.tasks.split("test")
    assert len(ids) == 812 and "webarena.157/0" in ids
    assert TEXTCRAFT not in ids
    env.close()


@pytest.mark.slow
@in_chromium
def test_browsergym_plays_our_sites_as_tasks_of_its_own_and_pays_as_webarena_does(tmp_path):
    from agentgym_servers.web.chromium.interpreter import web_environment, web_python

    # Judged by the answer, by pages, by the address, and by an answer over two sites.
    tasks = ["shopping/7106/0", "shopping/7204/8", "reddit/1009/0", "wikipedia+map/1402/0"]
    environment = {**web_environment(), **what_browsergym_needs(tmp_path)}
    environment["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'tests' / 'support'}"
    environment["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'adapters'}"
    played = subprocess.run(
        [web_python(), str(ROOT / "tests" / "support" / "solve_site_tasks.py"), *tasks],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    told = json.loads(played.stdout.splitlines()[-1])
    assert told == {"solved": {task: [1.0, True] for task in tasks}, "given up": 0.0}
