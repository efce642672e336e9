"""What is exported loads where it is meant for: Hugging Face's datasets, and TRL's own trainer."""

from __future__ import annotations

import pytest
import torch
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

from agentgym_env.trajectory import Tokens, Turn
from agentgym_train.data.files import write_rows
from agentgym_train.data.formats import export_rows
from tests.train.small import textcraft_tokenizer, tiny_model
from tests.train.test_formats import SUFFIX, episode

EPISODES = [
    # Rows whose details differ in kind: one column of them would fit no table.
    episode("ab", turns=[Turn("get", "get", "ok", 1.0, {"why": 1})]),
    episode("cd", False, turns=[Turn("craft", "craft", "no", 0.0, {"why": ["x", None]})]),
    episode("ef", tokens=Tokens([1], [2], [1], [0.0], [0], [1])),
    episode("gh", False, instruction="Rules.", category="depth 1"),
]
COLUMNS = {
    "messages": {"messages", "env", "task", "success", "reward", "agentgym"},
    "conversations": {"item_id", "conversations", "reward", "success", "agentgym"},
}


def loaded(folder, form: str, array: bool = False):
    path = folder / f"{form}.{SUFFIX[array]}"
    count = write_rows(path, export_rows(EPISODES * 4, form))
    data = load_dataset(
        "json", data_files=str(path), split="train", cache_dir=str(folder / "cache")
    )
    assert len(data) == count > 0
    return data


@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize("form", COLUMNS)
def test_datasets_loads_every_export(tmp_path, form, array):
    data = loaded(tmp_path, form, array)
    assert set(data.column_names) == COLUMNS[form]
    if form == "messages":
        assert data[0]["messages"][0] == {"role": "system", "content": "Rules."}
        assert len(data.filter(lambda row: row["success"])) == len(data) // 2


def weights(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()]).clone()


def settings(folder):
    return {
        "output_dir": str(folder / "out"), "max_steps": 1, "per_device_train_batch_size": 2,
        "learning_rate": 1e-2, "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
        "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
    }  # fmt: skip


def test_trls_sft_trainer_takes_the_messages(tmp_path):
    model = tiny_model().train()
    before = weights(model)
    trainer = SFTTrainer(
        model=model, processing_class=textcraft_tokenizer(),
        train_dataset=loaded(tmp_path, "messages"), args=SFTConfig(**settings(tmp_path)),
    )  # fmt: skip
    trainer.train()
    assert not torch.equal(before, weights(model))
