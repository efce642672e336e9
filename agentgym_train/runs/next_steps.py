"""The commands that are suggested at the end of a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from agentgym_env.registry import plain_name
from agentgym_env.run_store import RunStore
from agentgym_train.config.files import user_path
from agentgym_train.config.learn import DPOConfig, SFTConfig
from agentgym_train.config.policy import HORIZON, SETTINGS_OF_A_RUN, PolicyConfig
from agentgym_train.config.read import DEFAULT
from agentgym_train.config.rl import RLConfig
from agentgym_train.config.run import RunConfig
from agentgym_train.config.trust import is_known, trust_option
from agentgym_train.config.worlds import World, WorldEvalSettings, file_name
from agentgym_train.training.checkpoints import last_checkpoint

WEAK = 0.05
"""Success below which the suggestion after SFT is to find out why."""
_NOTHING_TO_LEARN = (
    "read five failures. Where next to nothing is solved, RL has no success to learn from: begin "
    "with a policy that solves some tasks, such as one after SFT"
)


def next_commands(config: RLConfig, store: RunStore) -> list[tuple[str, str]]:
    """(command, purpose) of the suggested commands after RL."""
    run = store.path
    success = (store.read_json("summary.json") or {}).get("success_after")
    is_hopeless = success is not None and success < WEAK
    return [
        *([(f"agentgym view {run}", _NOTHING_TO_LEARN)] if is_hopeless else []),
        *(
            (
                eval_command(config, w, run, w.split if config.eval.after else w.eval.split),
                "evaluate the trained policy"
                + " on another split" * config.eval.after
                + ", with the wrappers of the training" * bool(w.wrappers),
            )
            for w in config.worlds
        ),
        *(
            (
                f"agentgym eval --env {w.env} --policy expert --split {w.eval.split} "
                f"--horizon {w.eval.horizon}",
                "evaluate the oracle",
            )
            for w in config.worlds
        ),
        *_further(config, store),
    ]


def next_learning_commands(config: SFTConfig | DPOConfig, store: RunStore) -> list[tuple[str, str]]:
    """(command, purpose) of the suggested commands after SFT or DPO."""
    run, worlds = store.path, config.worlds
    if not worlds:  # of the command the user completes the environment
        own = WorldEvalSettings(split=config.eval.split, horizon=config.eval.horizon or HORIZON)
        worlds = [World(env="ENV", eval=own)]
    results = store.read_json("summary.json") or {}
    success = results.get("success_after")
    if success is not None and success < WEAK:
        return _after_a_weak_result(config, store, results)
    several = len(worlds) > 1
    file = None if several else _rl_config(worlds[0].env)
    written = shlex.quote(str(file or "rl.yaml"))
    entries = ", ".join(f"{{env: {w.env}}}" for w in worlds)
    setting = f"envs: [{entries}]" if several else f"env: {worlds[0].env}"
    return [
        *((eval_command(config, w, run, w.eval.split), "evaluate the policy") for w in worlds),
        *(
            (
                f"agentgym collect --env {w.env} --policy {run}/model "
                f"--split {_split_of_data(config)} "
                f"--out {run}/model-episodes{f'-{file_name(w.env)}' * several}"
                f"{policy_options(_in_world(config, w), run)}",
                "collect its episodes: pairs for method: dpo, or more data for method: sft",
            )
            for w in worlds
        ),
        (
            f"agentgym train {written} --model {run}/model --output_dir {run}-rl",
            "continue with RL"
            if file
            else f"continue with RL: write rl.yaml with {setting} (examples/train has some)",
        ),
    ]


def policy_options(config: RunConfig, run: Path) -> str:
    """The options of `agentgym eval` and `collect` for the policy of a run."""
    words = []
    plain = PolicyConfig()
    if any(getattr(config, name) != getattr(plain, name) for name in SETTINGS_OF_A_RUN):
        words += ["--settings-of", shlex.quote(str(run))]
    if not is_known("agent", config.agent):
        agent = config.agent if isinstance(config.agent, str) else json.dumps(config.agent)
        words += ["--agent", shlex.quote(agent)]
    for wrapper in config.wrappers:
        words += [
            "--wrapper",
            wrapper if isinstance(wrapper, str) else shlex.quote(json.dumps(wrapper)),
        ]
    return "".join(f" {word}" for word in words)


def eval_command(config: RunConfig, world: World, run: Path, split: str) -> str:
    """The command that evaluates the policy of a run in one of its environments."""
    return (
        f"agentgym eval --env {world.env} --policy {run}/model --split {split} "
        f"--horizon {world.eval.horizon}{policy_options(_in_world(config, world), run)}"
    )


def _further(config: RLConfig, store: RunStore) -> list[tuple[str, str]]:
    """The command that trains further; none where it would be refused."""
    has_objects = (store.read_json("run.json") or {}).get("objects")
    if has_objects or last_checkpoint(store.checkpoints) is None:
        return []
    command = f"agentgym train --resume {store.path} --steps {2 * config.steps}"
    return [
        (
            command + trust_option(config.as_dict()),
            "train it further, to twice as many steps",
        )
    ]


def _in_world(config: RunConfig, world: World) -> RunConfig:
    """The config with the prompt and the wrappers of one of its environments."""
    return replace(config, instruction=world.instruction, wrappers=world.wrappers or [])


def _split_of_data(config: SFTConfig | DPOConfig) -> str:
    """The split of the first run whose episodes were learned from; otherwise `train`."""
    for source in config.data:
        run = RunStore(user_path(source)).read_json("run.json") or {}
        settings = run.get("config")
        if isinstance(settings, dict) and "split" in settings:
            return str(settings["split"])
    return "train"


def _after_a_weak_result(
    config: SFTConfig | DPOConfig, store: RunStore, results: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """What to do about a policy that solves next to nothing: RL would learn from no success."""
    run, after = store.path, results.get("after") or {}
    reports = [after] if "cut_turns" in after else list(after.values())
    cut = fmean([report["cut_turns"] or 0.0 for report in reports]) if reports else 0.0
    longer = f"agentgym train --resume {run} --steps {2 * max(1, results['steps'] or 1)}"
    return [
        (
            f"agentgym view {run}",
            f"read five failures: what does the policy write? {cut:.0%} of its turns were cut at "
            f"turn_max_tokens={config.turn_max_tokens}",
        ),
        (
            longer + trust_option(config.as_dict()),
            "train longer, to twice as many steps, or collect more episodes. Begin RL when some "
            "tasks are solved",
        ),
    ]


def _rl_config(env: str) -> Path | None:
    """A config in the working directory that trains by RL in an environment, the first by name."""
    for path in sorted(Path().glob("*.y*ml")):
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            continue  # it is not a config of ours
        if not isinstance(values, dict):
            continue
        named = plain_name(str(values.get("env")))
        if (values.get("method", DEFAULT), named) == ("rl", plain_name(env)):
            return path
    return None
