"""`agentgym new`: what it writes works as it is, with nothing changed here."""

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from agentgym_env.cli.new import write_package
from agentgym_env.conformance import RULES
from agentgym_env.errors import BadRequest
from agentgym_train.config.read import read_method_config
from commands import agentgym

EXAMPLE = Path(__file__).parents[2] / "examples" / "author_an_environment.py"


def run(*words: str, cwd: Path, path: Path) -> str:
    code = "import sys; sys.path[:0] = sys.argv[1:2]; sys.argv[1:2] = []\n"
    code += "from agentgym_env.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), *words],
        capture_output=True, text=True, check=False, timeout=100, cwd=cwd,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A new package, installed by pip into a folder of its own."""
    root = tmp_path_factory.mktemp("author")
    env_id, paths = write_package("my-maze", root / "my-maze")
    site = root / "site"
    subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
            "--no-build-isolation", "--target", str(site), str(paths[0].parent),
        ],
        check=True, capture_output=True, timeout=100,
    )  # fmt: skip
    return env_id, site, root / "my-maze"


def test_it_is_a_project_and_the_entry_point_names_the_class(installed):
    env_id, _, folder = installed
    assert sorted(path.name for path in folder.iterdir() if path.is_file()) == [
        "my_maze.py", "pyproject.toml", "rl.yaml", "sft.yaml", "test_my_maze.py",
    ]  # fmt: skip
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["agentgym.environments"] == {env_id: "my_maze:MyMaze"}


@pytest.mark.slow
def test_every_command_knows_it_once_it_is_installed(installed, tmp_path):
    env_id, site, _ = installed
    rows = json.loads(run("envs", "--json", cwd=tmp_path, path=site))
    sizes = {"splits": {"train": 80, "test": 20}, "selections": {}}
    assert {"id": env_id, **sizes, "missing": None} in rows
    words = ("--sessions", "8", "--max-step-time", "60")
    checked = run("check", "my-maze", *words, cwd=tmp_path, path=site)
    assert "FAIL" not in checked and checked.count("ok  ") == len(RULES) - 1
    assert "n/a  calls of tools never raise: it declares no tools" in checked
    report = tmp_path / "out.json"
    run("eval", "--env", env_id, "--policy", "expert", "--split", "test", "--json", str(report),
        cwd=tmp_path, path=site)  # fmt: skip
    assert json.loads(report.read_text())["reports"]["expert"]["success"] == 1.0


def test_gymnasium_makes_it_behind_a_server(installed):
    env_id, site, _ = installed
    code = f"""
import sys; sys.path.insert(0, {str(site)!r})
import gymnasium, agentgym_env
env = gymnasium.make({env_id!r})
print(env.reset(seed=0)[0], env.unwrapped.expert_action())
env.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "I have a number from 1 to 30 in mind. 15"


@pytest.mark.parametrize("name", ["sft.yaml", "rl.yaml"])
def test_its_configs_are_valid_and_name_it(installed, name):
    env_id, _, folder = installed
    config = read_method_config(folder / name)
    config.check_policy()
    assert config.env == env_id and f"{config.method}.yaml" == name


def test_data_files_go_into_its_wheel(tmp_path):
    _, paths = write_package("my-maze", tmp_path / "my maze")
    data = paths[0].parent / "my_maze_data" / "levels"
    data.mkdir(parents=True)
    (data / "one.txt").write_text("#..#")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=paths[0].parent, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        metadata = next(name for name in names if name.endswith("METADATA"))
        extras = wheel.read(metadata).decode()
    assert {"my_maze.py", "my_maze_data/levels/one.txt"} <= names
    assert not any("test_" in name or name.endswith(".yaml") for name in names)
    assert "Provides-Extra: test" in extras and "Requires-Dist: pytest" in extras


@pytest.mark.slow
def test_its_own_tests_pass(installed):
    _, site, folder = installed
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        timeout=100, cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(site)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_its_tests_hold_for_another_game(installed, tmp_path):
    """The tests speak of no numbers: they pass for Hanoi, and fail when its expert errs."""
    env_id, _, folder = installed
    game = EXAMPLE.read_text().replace("Hanoi", "MyMaze")
    tests = (folder / "test_my_maze.py").read_text()
    assert env_id in tests
    (tmp_path / "test_my_maze.py").write_text(tests)
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not gymnasium",
    ]  # fmt: skip
    for source, expected in (
        (game, 0),
        (game.replace('yield f"move', 'yield f"never move'), 1),
    ):
        (tmp_path / "my_maze.py").write_text(source)
        done = subprocess.run(
            command, timeout=100, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == expected, done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "9lives", "class", "json", "a b!", "", "agentgym-env", "ü", "numpy", "PyYAML", "yaml",
        "none", "true", "False", "maze.", "_maze", "_", "x_", "__", "__init__", "__main__", "a--b",
        "x" * 51, "x" * 300, "maze\n",
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_a_package_is_refused(tmp_path, name):
    with pytest.raises(BadRequest):
        write_package(name, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_folder_that_cannot_be_created_is_one_line(tmp_path):
    (tmp_path / "taken").write_text("mine")
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(BadRequest, match=r"cannot be created .* choose another"):
            write_package("my-maze", folder)
    assert (tmp_path / "taken").read_text() == "mine"


def test_the_next_steps_can_be_copied_for_a_folder_with_a_space(tmp_path):
    shown = agentgym("new", "a b", folder=tmp_path).out
    assert (
        "pip install -e 'a b[test]'\n" in shown
        and "pytest 'a b'\n" in shown
        and "cd 'a b'\n" in shown
    )
    assert (tmp_path / "a b" / "a_b.py").is_file()


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "my_maze.py").write_text("mine")
    with pytest.raises(BadRequest, match="exists already"):
        write_package("my-maze", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["my_maze.py"]


def test_a_link_whose_target_is_missing_is_not_written_through(tmp_path):
    folder = tmp_path / "maze"
    folder.mkdir()
    (folder / "sft.yaml").symlink_to("../victim.yaml")
    with pytest.raises(BadRequest, match=r"sft.yaml exists already"):
        write_package("my-maze", folder)
    assert not (tmp_path / "victim.yaml").exists()
    assert [path.name for path in folder.iterdir()] == ["sft.yaml"]


def test_the_example_is_short_and_its_expert_solves_it():
    lines = len(EXAMPLE.read_text().splitlines())
    page = (EXAMPLE.parents[1] / "docs" / "authoring.md").read_text()
    assert f"is a complete environment in {lines} lines" in page
    example = agentgym("play", f"{EXAMPLE.stem}:Hanoi", folder=EXAMPLE.parent, stdin="!\n")
    assert "> move" in example.out


@pytest.mark.slow
def test_the_example_keeps_every_promise():
    words = ("--sessions", "8", "--max-step-time", "60")
    shown = run("check", f"{EXAMPLE.stem}:Hanoi", *words, cwd=EXAMPLE.parent, path=EXAMPLE.parent)
    assert shown.count("ok  ") == len(RULES) - 1
    assert "n/a  calls of tools never raise: it declares no tools" in shown
