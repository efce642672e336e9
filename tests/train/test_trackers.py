"""What a run sends to its trackers, and that a tracker that is missing is named before torch."""

import json
import sqlite3
from importlib.util import find_spec

import pytest
import yaml
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from agentgym_env.errors import ConfigError, MissingExtra
from agentgym_train import AgentTrainer, RLConfig, SFTConfig
from agentgym_train.config.read import config_from
from agentgym_train.config.trainer_args import OTHER_TRACKERS, TRACKERS
from agentgym_train.runs.preflight import check_trackers
from tests.train.small import textcraft_tokenizer, tiny_model
from tests.train.test_agent_trainer import SHORT, TEXTCRAFT, StopAt
from tests.train.test_fast_failure import refusal
from tests.train.test_imitation_run import save_episodes
from tests.train.test_run import write_config

pytestmark = pytest.mark.usefixtures("textcraft_server")
WHOLE = {**SHORT, "eval": {"before": True, "after": True}}


def needs(name):
    found = find_spec(name) is not None
    return pytest.mark.skipif(not found, reason=f"{name} is not installed: pip install {name}")


def train(args, **given):
    env = TEXTCRAFT if isinstance(args, RLConfig) else ""
    with AgentTrainer(
        tiny_model(), env, args, processing_class=textcraft_tokenizer(),
        console=Console(quiet=True), **given,
    ) as trainer:  # fmt: skip
        trainer.train()


def rl(folder, tracker, **changes):
    return RLConfig(
        output_dir=str(folder / "craft"), **{**WHOLE, **changes},
        trainer_args={"report_to": tracker},
    )  # fmt: skip


def events(folder):
    (file,) = (folder / "craft" / "tensorboard").glob("events.out.tfevents.*")
    found = EventAccumulator(str(file), size_guidance={"tensors": 0})
    found.Reload()
    return found


def text_of(found, name):
    """A text as it was sent, before it was made a block of code."""
    (sent,) = found.Tensors(f"{name}/text_summary")
    lines = sent.tensor_proto.string_val[0].decode().splitlines()
    return "\n".join(line.removeprefix("    ") for line in lines)


def test_tensorboard_has_config_held_out_success_and_episodes_in_the_run_folder(tmp_path):
    train(rl(tmp_path, "tensorboard"))
    found = events(tmp_path)
    assert [event.step for event in found.Scalars("train/success")] == [1, 2]
    sent = {event.step: event.value for event in found.Scalars("eval/success")}
    summary = json.loads((tmp_path / "craft" / "summary.json").read_text())
    assert sent == pytest.approx({0: summary["success_before"], 2: summary["success_after"]})
    config = yaml.safe_load(text_of(found, "agentgym"))
    stored = json.loads((tmp_path / "craft" / "run.json").read_text())["config"]
    assert config.pop("run_folder") == str(tmp_path / "craft")
    assert config == stored and config["horizon"] == [2]
    shown = [name for name in found.Tags()["tensors"] if name.startswith("episodes/")]
    episodes = [yaml.safe_load(text_of(found, n.removesuffix("/text_summary"))) for n in shown]
    assert {e["of"] for e in episodes} == {"eval_before", "train, step 1", "eval_after"}
    assert all(e["env"] == TEXTCRAFT and "Goal: craft" in e["text"] for e in episodes)
    named = json.loads(text_of(found, "args"))
    assert named["run_name"] == "craft"


def test_a_run_that_is_stopped_sends_its_episodes_and_goes_on_in_the_same_folder(tmp_path):
    args = rl(tmp_path, ["tensorboard"], eval={"before": False})
    train(args, callbacks=[StopAt(1)])
    first = events(tmp_path)
    assert "eval/success" not in first.Tags()["scalars"]
    assert text_of(first, "episodes/0").startswith("of: train, step 0")
    with AgentTrainer(
        tiny_model(), TEXTCRAFT, args, processing_class=textcraft_tokenizer()
    ) as trainer:
        trainer.train(resume_from_checkpoint=True)
    whole = EventAccumulator(str(tmp_path / "craft" / "tensorboard"))
    whole.Reload()
    assert [event.step for event in whole.Scalars("train/reward")] == [1, 2]
    assert [event.step for event in whole.Scalars("eval/success")] == [2]


def test_imitation_without_an_environment_sends_its_config_and_a_name_of_its_own(tmp_path):
    args = SFTConfig(
        output_dir=str(tmp_path / "craft"), data=[save_episodes(tmp_path / "episodes")],
        rows_per_step=4, epochs=1, instruction="", max_tokens=1400,
        trainer_args={"report_to": "tensorboard", "run_name": "mine"},
    )  # fmt: skip
    train(args)
    found = events(tmp_path)
    assert yaml.safe_load(text_of(found, "agentgym"))["method"] == "sft"
    assert json.loads(text_of(found, "args"))["run_name"] == "mine"
    assert found.Scalars("train/loss")
    assert not [name for name in found.Tags()["tensors"] if name.startswith("episodes")]


@pytest.mark.filterwarnings("ignore")
@needs("wandb")
def test_wandb_has_config_held_out_success_and_a_table_of_episodes(tmp_path, monkeypatch):
    import wandb

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    began = wandb.init(dir=str(tmp_path))  # a run of the user's, which ours does not end
    train(rl(tmp_path, "wandb"))
    assert wandb.run is began
    assert began.config["agentgym"]["run_folder"] == str(tmp_path / "craft")
    assert began.config["agentgym"]["horizon"] == [2] and began.config["run_name"] == "craft"
    assert {"eval/success", "eval/turns"} <= dict(began.summary).keys()
    wandb.finish()
    (file,) = tmp_path.glob("wandb/offline-run-*/files/media/table/episodes_*.table.json")
    table = json.loads(file.read_text())
    assert {row[0] for row in table["data"]} == {"eval_before", "train, step 1", "eval_after"}
    train(rl(tmp_path, "wandb", eval={"before": False, "after": False}))
    assert wandb.run is None, "a run that ours began is left open"
    assert len([*tmp_path.glob("wandb/offline-run-*")]) == 2


@pytest.mark.filterwarnings("ignore")
@needs("trackio")
def test_trackio_has_config_held_out_success_and_a_table_of_episodes(tmp_path):
    import trackio

    train(rl(tmp_path, "trackio"))
    (file,) = trackio.utils.TRACKIO_DIR.glob("huggingface.db")
    with sqlite3.connect(file) as database:
        chosen = "where run_name = 'craft' order by id"
        sent = [json.loads(r[0]) for r in database.execute(f"select metrics from metrics {chosen}")]
        (config,) = database.execute("select config from configs").fetchone()
    assert json.loads(config)["agentgym"]["run_folder"] == str(tmp_path / "craft")
    assert [row["train/global_step"] for row in sent if "eval/success" in row][-2:] == [0, 2]
    (table,) = [row["episodes"] for row in sent if "episodes" in row][-1:]
    assert {row["of"] for row in table["_value"]} == {"eval_before", "train, step 1", "eval_after"}


def test_another_tracker_that_is_missing_is_named_before_torch_loads(tmp_path):
    for name, module in (("mlflow", "mlflow"), ("flyte", "flytekit"), ("comet_ml", "comet_ml")):
        config = config_from(
            {"model": "m", "env": "e:E", "output_dir": "x", "trainer_args": {"report_to": name}}
        )
        with pytest.raises(MissingExtra, match=f"{name} needs {module}"):
            check_trackers(config)


def test_the_trackers_are_those_of_transformers():
    assert {*TRACKERS, *OTHER_TRACKERS} == {*INTEGRATION_TO_CALLBACK, "none", "all"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("wandbb", "has no tracker 'wandbb'; did you mean wandb?"),
        (["tensorboard", "tensor board"], "no tracker 'tensor board'; did you mean tensorboard?"),
        ("x", "has no tracker 'x'; choose from tensorboard, trackio, wandb, none, all"),
    ],
)
def test_an_unknown_tracker_is_rejected_with_the_near_one(given, said):
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        RLConfig(model="m", env=TEXTCRAFT, output_dir="o", trainer_args={"report_to": given})


@pytest.mark.parametrize(
    ("given", "missing"),
    [("wandb", "wandb"), ("[none, trackio]", "trackio"), ("tensorboard", "tensorboard")],
)
def test_a_tracker_that_is_not_installed_is_named_before_torch_loads(tmp_path, given, missing):
    absent = f"for n in ('{missing}', 'tensorboardX'): sys.modules[n] = None"
    message = refusal(write_config(tmp_path), f"trainer_args={{report_to: {given}}}", before=absent)
    assert f"report_to {missing} needs {missing}: pip install 'agentgym-sdk[{missing}]'" in message
    assert not (tmp_path / "run").exists()
