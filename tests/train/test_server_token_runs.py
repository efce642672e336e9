"""Runs on servers with a token: every command sends it, and no file or output contains it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
import yaml

from agentgym_env.errors import BadRequest, ConfigError
from agentgym_servers.worlds.textcraft.env import TextCraft
from agentgym_train.config.learn import AgentEvolConfig
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.trust import names_in_run
from agentgym_train.config.worlds import World
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.rollout.worlds import open_worlds
from agentgym_train.runs.preflight import prepared
from tests.train.command import Command, finish
from tests.train.small import save_tiny_policy
from tests.viewer.viewing import viewer

ENV = "agentgym/TextCraft-v0"
SECRET = "s3cret-for-tests"
NEEDED = {"model": "m", "env": ENV, "output_dir": "runs/x"}


@pytest.fixture
def guarded(serve) -> str:
    """The address of a server that requires a token."""
    return serve(TextCraft, env_id=ENV, token=SECRET).address


@pytest.fixture
def token_file(tmp_path) -> Path:
    file = tmp_path / "token.txt"
    file.write_text(SECRET + "\n")
    return file


def files_with_the_token(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    assert found
    return [path for path in found if SECRET.encode() in path.read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["collect", "eval"])
def test_collect_and_eval_send_the_token(guarded, token_file, tmp_path, name):
    out = tmp_path / "out"
    words = [name, "--env", ENV, "--policy", "expert", "--split", "test", "--out", out]
    words += ["--server", guarded, "--horizon", "2"]
    words += ["--n", "2"] if name == "collect" else ["--limit", "2"]
    status, output = finish(Command(*words))
    assert status == 2
    assert "the server requires a token: pass token=, --token-file or AGENTGYM_TOKEN" in output
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    status, output = finish(Command(*words, "--token-file", wrong))
    assert status == 2
    assert "the server rejected this token" in output
    status, output = finish(Command(*words, "--token-file", token_file))
    assert status == 0, output
    assert SECRET not in output
    assert files_with_the_token(out) == []


async def pages_of(run: Path, index: Path) -> list[bytes]:
    """What the viewer answers about a run and its first episode."""
    async with viewer(run, index=index) as address, aiohttp.ClientSession() as http:

        async def get(path: str) -> bytes:
            async with http.get(address + path) as answer:
                assert answer.status == 200, path
                return await answer.read()

        while not (found := json.loads(await get("/api/trajectories")))["total"]:
            await asyncio.sleep(0)
        row = found["rows"][0]
        episode = f"/{row['run']}/{row['name']}/{row['start']}"
        paths = ["/", "/api/runs", "/api/trajectories", f"/api/metrics?run={row['run']}",
                 f"/api/episode{episode}", f"/export{episode}.json", f"/export{episode}.html",
                 "/export/trajectories.jsonl"]  # fmt: skip
        return [await get(path) for path in paths]


@pytest.mark.slow
def test_a_training_run_names_the_file_and_never_the_token(guarded, token_file, tmp_path):
    config = tmp_path / "config.yaml"
    run = tmp_path / "run"
    values = {
        "model": save_tiny_policy(tmp_path / "policy"), "env": ENV, "output_dir": str(run),
        "servers": [guarded], "token_file": str(token_file), "horizon": 1, "steps": 1,
        "turn_max_tokens": 4, "max_tokens": 900, "instruction": "", "prompts_per_step": 1,
        "num_generations": 2, "eval": {"before": False, "after": False},
    }  # fmt: skip
    config.write_text(yaml.safe_dump(values))
    status, output = finish(Command("train", config))
    assert status == 0, output
    assert SECRET not in output
    assert files_with_the_token(run) == []
    assert "token.txt" in (run / "run.json").read_text()
    pages = asyncio.run(pages_of(run, tmp_path / "index.sqlite"))
    assert run.name.encode() in pages[1]
    assert [page for page in pages if SECRET.encode() in page] == []
    status, output = finish(Command("train", config, "--token-file", tmp_path / "none"))
    assert status == 2
    assert "cannot read the token file" in output


def test_a_config_or_the_variable_gives_the_token(guarded, token_file, monkeypatch):
    config = RLConfig(**NEEDED, servers=[guarded], token_file=str(token_file))
    open_worlds(config).close()
    with pytest.raises(ConfigError, match="cannot read the token file"):
        open_worlds(RLConfig(**NEEDED, servers=[guarded], token_file="nowhere"))
    with pytest.raises(BadRequest, match="requires a token"):
        RolloutRunner(ENV, [guarded])
    monkeypatch.setenv("AGENTGYM_TOKEN", SECRET)
    RolloutRunner(ENV, [guarded]).close()


@pytest.mark.parametrize(
    "config",
    [
        RLConfig(**NEEDED, token_file="token"),
        AgentEvolConfig(**{**NEEDED, "env": ""}, envs=[World(env=ENV)], token_file="token"),
    ],
    ids=["rl", "agent_evol"],
)
def test_a_token_file_without_servers_is_rejected(config):
    with pytest.raises(ConfigError, match=r"token_file \(--token-file\) needs servers"):
        prepared(config)


def test_every_environment_of_agent_evol_is_sent_the_token(guarded, token_file):
    worlds = [World(env=ENV, servers=[guarded])]
    given = {**NEEDED, "env": "", "envs": worlds}
    with open_worlds(AgentEvolConfig(**given, token_file=str(token_file))):
        pass
    with pytest.raises(BadRequest, match="requires a token"):
        open_worlds(AgentEvolConfig(**given))


def test_a_stored_run_that_names_a_token_file_needs_trust():
    assert names_in_run({"token_file": "token"}) == {"token_file": "token"}
