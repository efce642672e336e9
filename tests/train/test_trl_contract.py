"""What of TRL's private parts the trainer leans on, so that a new TRL fails here, and clearly."""

from __future__ import annotations

import inspect

import pytest
import torch
import trl
from transformers import Trainer
from trl import DPOTrainer, GRPOTrainer, SFTTrainer
from trl.trainer.utils import FusedCausalLMOutput, add_fused_lm_head

from tests.train.ragged_rows import make_trainer
from tests.train.small import tiny_model

METHODS = {
    "_compute_loss": ["self", "model", "inputs"],
    "_generate_and_score_completions": ["self", "inputs"],
    "_get_per_token_logps_and_entropies": [
        "self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size",
        "compute_entropy", "compute_aux_loss", "pixel_values", "image_grid_thw", "num_images",
        "pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes", "token_type_ids",
        "mm_token_type_ids", "image_position_ids",
    ],
}  # fmt: skip
ATTRIBUTES = (
    "_entropy_bonus_enabled", "_metrics", "accelerator", "aux_loss_enabled",
    "current_gradient_accumulation_steps", "loss_type", "top_entropy_quantile",
)  # fmt: skip
LEARNING = {
    (SFTTrainer, "compute_loss"): [
        "self", "model", "inputs", "return_outputs", "num_items_in_batch",
    ],
    (DPOTrainer, "_compute_loss"): ["self", "model", "inputs", "return_outputs"],
    (DPOTrainer, "_prepare_dataset"): [
        "self", "dataset", "processing_class", "args", "dataset_name",
    ],
    (DPOTrainer, "_get_train_sampler"): ["self", "train_dataset"],
}  # fmt: skip
REMEDY = "look at agentgym_train/training/update.py and trainer.py before raising the bound on trl"


@pytest.mark.parametrize("name", METHODS)
def test_an_overridden_method_takes_what_it_took(name):
    found = list(inspect.signature(getattr(GRPOTrainer, name)).parameters)
    assert found == METHODS[name], f"trl {trl.__version__} changed {name}: {REMEDY}"


@pytest.mark.parametrize(("trainer", "name"), LEARNING)
def test_an_overridden_method_of_sft_and_dpo_takes_what_it_took(trainer, name):
    found = list(inspect.signature(getattr(trainer, name)).parameters)
    assert found == LEARNING[trainer, name], (
        f"trl {trl.__version__} changed {trainer.__name__}.{name}: look at "
        "agentgym_train/training/sft.py and preference.py before raising the bound on trl"
    )


def test_transformers_asks_for_the_norm_of_a_gradient_before_every_update():
    loop = inspect.getsource(Trainer._run_epoch)
    steps = ("self._get_grad_norm(", "self.optimizer.step()", "self._maybe_log_save_evaluate(")
    places = [loop.index(step) for step in steps]
    assert places == sorted(places), "look at agentgym_train/training/finite.py"
    assert list(inspect.signature(Trainer._get_grad_norm).parameters) == [
        "self", "model", "grad_norm",
    ]  # fmt: skip


def test_the_loss_of_sft_and_dpo_is_of_what_the_masks_and_labels_name():
    sft, dpo = (inspect.getsource(t) for t in (SFTTrainer.compute_loss, DPOTrainer._compute_loss))
    assert "outputs = model(**inputs, fused_lm_head=True)" in sft
    assert "self._total_train_tokens" in sft and 'self._metrics[mode]["num_tokens"]' in sft
    assert 'labels = inputs["input_ids"].masked_fill(completion_mask == 0, -100)' in dpo


def test_the_attributes_that_are_read_are_there(tmp_path):
    trainer = make_trainer(GRPOTrainer, tmp_path)
    missing = [name for name in ATTRIBUTES if not hasattr(trainer, name)]
    assert not missing, f"trl {trl.__version__} has no {missing}: {REMEDY}"


def test_the_loss_asks_for_scores_through_the_method_that_is_overridden():
    source = inspect.getsource(GRPOTrainer._compute_loss)
    assert "self._get_per_token_logps_and_entropies(" in source, REMEDY
    assert "compute_aux_loss=self.aux_loss_enabled" in source, REMEDY


def test_the_fused_head_scores_the_labels_it_is_given_unshifted():
    model = tiny_model()
    add_fused_lm_head(model, temperature=2.0, outputs=("log_probs", "entropy"))
    labels = torch.tensor([[5, 6, 7]])
    output = model(input_ids=labels, shift_labels=labels, fused_lm_head=True)
    assert isinstance(output, FusedCausalLMOutput), REMEDY
    expected = torch.log_softmax(model(input_ids=labels).logits / 2.0, -1)
    expected = expected.gather(2, labels[:, :, None]).squeeze(2)
    assert torch.allclose(output.log_probs, expected, atol=1e-5), REMEDY
    assert output.entropy.shape == (1, 3), REMEDY
