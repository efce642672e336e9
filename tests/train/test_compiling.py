"""`compile`: the same training with compiled layers, and without a compiler an error."""

import pytest
import torch
import torch._dynamo

from agentgym_env.errors import ConfigError
from agentgym_env.run_store import RunStore
from agentgym_train.models.setup import uncompiled
from agentgym_train.training.trainer import compile_layers
from tests.train.command import Command, finish
from tests.train.small import tiny_model

SHORT = [
    "starter:textcraft/rl.yaml", "steps=2", "prompts_per_step=2", "num_generations=4",
    "eval.before=false", "eval.after=false", "admission=informative", "trainer_args.warmup_steps=0",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("lora", ["lora=null", "lora={r: 4}"])
def test_compiled_layers_train_as_the_layers_themselves(lora, tmp_path):
    rows = {}
    for name in ("false", "true"):
        run = tmp_path / name
        words = [lora, f"trainer_args.torch_compile={name}", f"output_dir={run}"]
        status, output = finish(Command("train", *SHORT, *words, cwd=tmp_path))
        assert status == 0, output
        rows[name], _ = RunStore.open(run).metrics()
    for plain, compiled in zip(rows["false"], rows["true"], strict=True):
        for key in ("reward", "entropy", "grad_norm", "sampled_tokens"):
            assert compiled[key] == pytest.approx(plain[key], rel=1e-3, abs=1e-6), key


def test_a_model_is_compiled_in_place_and_the_engines_context_runs_it_as_it_is():
    model = tiny_model()
    names = list(model.state_dict())
    compile_layers(model)
    assert list(model.state_dict()) == names
    torch._dynamo.utils.counters.clear()
    with torch.no_grad(), uncompiled(model):
        model(input_ids=torch.tensor([[3, 4, 5]]), use_cache=False)
    assert not torch._dynamo.utils.counters["stats"]


def test_without_a_compiler_the_key_is_rejected(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError, match="needs a C\\+\\+ compiler; install g"):
        compile_layers(tiny_model())
