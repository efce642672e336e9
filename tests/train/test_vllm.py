"""Real vLLM: in the trainer's process and behind HTTP, with weights that change."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise

import pytest
import yaml
from transformers import AutoTokenizer

from agentgym_env.errors import BadRequest, ServerStartFailed
from agentgym_env.run_store import RunStore
from agentgym_train.engines.base import Sampling
from agentgym_train.models.loading import load_policy
from tests.train.small import tiny_model
from tests.train.vllm_engines import (
    MAX_TOKENS,
    WARM,
    Stage,
    changed,
    hf_engine,
    ids,
    logprob_errors,
    random_model,
    turns,
    untied_model,
    worst_logprob,
)
from waiting import turned, until

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed here; `make setup-vllm`", allow_module_level=True)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.filterwarnings("default"),  # vLLM's own are many
]

TINY_PROMPTS = [[5, 6, 7], [9, 10, 11, 12, 13, 14, 15], [20], [9, 10, 11, 12]]
QUESTIONS = [
    "What is the capital of France?",
    "Count from one to ten.",
    "Name three colours of the rainbow.",
]


@pytest.fixture(scope="module")
def smollm():
    from tests.train.smollm2 import smollm2

    model, tokenizer = smollm2()
    asked = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": q}], add_generation_prompt=True, return_dict=False
        )
        for q in QUESTIONS
    ]
    return model, tokenizer, asked


@pytest.fixture(scope="module")
def stage(smollm):
    made = Stage()
    made.start_servers({"smollm": (smollm[0], 1), "untied": (untied_model(), 2)})
    yield made
    made.close()


@pytest.fixture(scope="module")
def untied_server(stage):
    return stage.server("untied")


@pytest.fixture(autouse=True)
def end_of_test(request):
    yield
    if "stage" in request.fixturenames:
        request.getfixturevalue("stage").end_test()


def assert_all_follow(stage, engines, model, prompts):
    """Every engine gives the greedy text of the model that it was given last."""
    before = None
    for version, current in enumerate([model, changed(model)]):
        texts = []
        for engine in engines:
            stage.run(engine.update_weights(current, version))
            generations = stage.run(turns(engine, prompts))
            assert {g.version for g in generations} == {version}
            assert worst_logprob(current, prompts, generations) < 1e-4
            texts.append(ids(generations))
        assert texts[0] == texts[1] == texts[2]
        assert all(new != old for new, old in zip(texts[0], before or [None] * 9, strict=False))
        before = texts[0]


@pytest.mark.slow
def test_a_real_model_with_tied_weights_answers_alike_from_every_engine(stage, smollm):
    model, tokenizer, asked = smollm
    assert model.config.tie_word_embeddings
    engines = [hf_engine(model), stage.colocate(model), stage.server("smollm")]
    assert "Paris" in tokenizer.decode(stage.run(turns(engines[1], asked))[0].token_ids)
    assert_all_follow(stage, engines, model, asked)


def test_untied_weights_arrive_in_every_engine(stage, untied_server):
    model = untied_model()
    assert not model.config.tie_word_embeddings
    engines = [hf_engine(model), stage.colocate(model), untied_server]
    assert_all_follow(stage, engines, model, TINY_PROMPTS)


def test_in_bf16_logprobs_are_as_near_as_bf16_allows(stage, smollm):
    small = random_model()
    in_bf16 = copy.deepcopy(small).bfloat16()
    generations = stage.run(turns(stage.colocate(small, dtype="bfloat16"), TINY_PROMPTS, 1.0))
    assert worst_logprob(in_bf16, TINY_PROMPTS, generations) < 2e-2
    # A real model's logits are rounded to eighths: its own forward pass in bf16 is as far off.
    model, _, asked = smollm
    engine = stage.colocate(model, dtype="bfloat16")
    generations = stage.run(turns(engine, asked, max_tokens=32))
    engines_own = logprob_errors(model, asked, generations).abs().mean()
    in_bf16 = copy.deepcopy(model).bfloat16()
    rounding = logprob_errors(model, asked, generations, by=in_bf16).abs().mean()
    assert engines_own < 1.5 * rounding < 0.06


@pytest.mark.parametrize("kind", ["colocate", "server"])
def test_a_turn_is_sampled_from_its_seed_and_ends_as_it_was_told(stage, untied_server, kind):
    model = untied_model()
    engine = untied_server if kind == "server" else stage.colocate(model)
    stage.run(engine.update_weights(model, 1))
    first = stage.run(turns(engine, TINY_PROMPTS, 0.7))
    assert worst_logprob(model, TINY_PROMPTS, first, 0.7) < 1e-4
    alone = stage.run(engine.generate(TINY_PROMPTS[2], Sampling(16, 0.7, seed=2)))
    assert alone.token_ids == first[2].token_ids, "whatever else is sampled beside it"
    stop = alone.token_ids[4]
    cut = stage.run(engine.generate(TINY_PROMPTS[2], Sampling(16, 0.7, (stop,), seed=2)))
    assert cut.token_ids == alone.token_ids[: alone.token_ids.index(stop) + 1]
    assert (cut.finish_reason, alone.finish_reason) == ("stop", "length")
    with pytest.raises(BadRequest, match="at least one token"):
        stage.run(engine.generate([], Sampling(4)))


def test_more_new_tokens_than_a_forward_takes_wait_for_the_next(stage):
    model = untied_model()
    engine = stage.colocate(model, extra={"max_num_batched_tokens": MAX_TOKENS})
    stage.run(engine.update_weights(model, 1))
    prompts = [(prompt * 500)[:500] for prompt in TINY_PROMPTS]
    sampled = stage.run(turns(engine, prompts, 0.7))
    assert worst_logprob(model, prompts, sampled, 0.7) < 1e-4


@pytest.mark.parametrize("kind", ["colocate", "server"])
def test_a_turn_is_of_one_version_of_the_weights(stage, untied_server, kind):
    old = untied_model()
    new = changed(old)
    engine = untied_server if kind == "server" else stage.colocate(old)

    async def update_in_between():
        await engine.update_weights(old, 3)
        early = asyncio.create_task(engine.generate(TINY_PROMPTS[0], Sampling(300, 1.0, seed=1)))
        await turned(lambda: engine._gate._turns if kind == "server" else engine._waiting)
        assert not early.done()
        update = asyncio.create_task(engine.update_weights(new, 4))
        await asyncio.sleep(0)
        late = asyncio.create_task(engine.generate(TINY_PROMPTS[0], Sampling(20, 1.0, seed=1)))
        await update
        return await early, await late

    early, late = stage.run(update_in_between())
    assert (early.version, late.version) == (3, 4)
    assert worst_logprob(old, TINY_PROMPTS[:1], [early]) < 1e-4
    assert worst_logprob(new, TINY_PROMPTS[:1], [late]) < 1e-4


def test_a_cancelled_turn_leaves_the_colocated_engine_free(stage):
    engine = stage.colocate(tiny_model())

    async def cancel():
        turn = asyncio.create_task(engine.generate(TINY_PROMPTS[0], Sampling(400, 1.0)))
        await turned(lambda: engine._waiting)
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        await engine.update_weights(tiny_model(), 1)

    stage.run(cancel())
    assert not engine._waiting and not engine._inner.has_unfinished_requests()


def test_a_turn_costs_what_is_new_since_the_last_and_nothing_of_old_weights_is_kept(stage):
    engine, cached = stage.colocate(tiny_model()), []
    step = engine._inner.step

    def watched():
        outputs = step()
        cached.extend(output.num_cached_tokens for output in outputs if output.finished)
        return outputs

    engine._inner.step = watched

    async def talk():
        ids = list(range(5, 105))
        for turn in range(4):
            generation = await engine.generate(ids, Sampling(20, 1.0, seed=turn))
            ids += generation.token_ids + list(range(200, 230))
        await engine.update_weights(tiny_model(seed=1), 1)
        await engine.generate(ids, Sampling(20, 1.0))

    stage.run(talk())
    # Prompts of 100, 150, 200, 250 and 300 tokens, in whole blocks of 32.
    assert cached == [0, 96, 160, 192, 0]


@pytest.mark.slow
def test_a_killed_server_loses_no_turn_and_comes_back_with_the_present_weights(
    stage, untied_server, caplog
):
    engine, model = untied_server, changed(untied_model(), seed=5)
    prompts = [[i, i + 1, i + 2] for i in range(20, 28)]
    victim = engine._fleet.members[0]

    async def play(kill):
        playing = asyncio.create_task(turns(engine, prompts, 1.0, max_tokens=480))
        if kill:
            await turned(lambda: victim.in_flight >= 4)
            # At once: a turn may be short, and then it is no longer under way.
            assert victim.in_flight == 4
            os.killpg(victim.local.process.pid, signal.SIGKILL)
        return await playing

    stage.run(engine.update_weights(model, 6))
    whole = stage.run(play(kill=False))
    assert victim.conversations == 4, "half of the conversations were its own"
    broken = stage.run(play(kill=True))
    # Not a turn is missing or there twice, and each is what it would have been.
    assert ids(broken) == ids(whole)
    assert victim.gone is not None and victim.conversations == 0
    assert "a vLLM server is unavailable" in caplog.text and "1 others remain" in caplog.text

    async def back():
        while victim.gone is not None:
            await asyncio.sleep(0.2)
        # The other is lost now, so that only the one that came back can answer.
        os.killpg(engine._fleet.members[1].local.process.pid, signal.SIGKILL)
        return await turns(engine, TINY_PROMPTS)

    generations = stage.run(back())
    assert worst_logprob(model, TINY_PROMPTS, generations) < 1e-4
    assert {g.version for g in generations} == {6}


def test_a_server_that_does_not_start_says_why(tmp_path):
    from agentgym_train.engines.vllm.process import launch_vllm

    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(ServerStartFailed, match="no-such-model"):
        launch_vllm(tmp_path, max_tokens=64)


def test_a_server_ends_with_its_owner(tmp_path):
    status = tmp_path / "status"
    # A shell, in a process group of its own, reports how the server ended.
    server = f"'{sys.executable}' -P -m agentgym_train.engines.vllm.process --help=all"
    command = f"{server}; echo $? >'{status}'"
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time; subprocess.Popen(['sh', '-c', sys.argv[1]], "
            "stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True); "
            "print(flush=True); time.sleep(600)",
            command,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    owner.stdout.readline()
    owner.kill()
    owner.communicate()
    until(lambda: status.is_file() and status.read_text().strip(), "the server does not end")
    assert status.read_text().strip() == str(128 + signal.SIGKILL)


def train(tmp_path, model, **changes):
    """The metrics of two steps of GRPO on TextCraft, or more; they must have changed the model."""
    values = {
        "model": model, "env": "agentgym/TextCraft-v0", "output_dir": str(tmp_path / "run"),
        "horizon": [8], "turn_max_tokens": 24, "max_tokens": 768, "instruction": "",
        "prompts_per_step": 4, "num_generations": 4, "steps": 2, "learning_rate": 5e-3,
        "eval": {"before": False, "after": False}, **changes,
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    command = "from agentgym_env.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", command, "train", tmp_path / "run.yaml"],
        capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows, broken = RunStore.open(tmp_path / "run").metrics()
    assert broken == [] and len(rows) == values["steps"]
    before, after = (dict(load_policy(str(f))[0].named_parameters())
                     for f in (model, tmp_path / "run" / "model"))  # fmt: skip
    assert max(float((after[name] - w).detach().abs().max()) for name, w in before.items()) > 1e-3
    for row in rows:
        assert row["lost"] == 0 and row["sampled_tokens"] > 0
    assert 0 < rows[0]["success"] < 1, "there is something to learn"
    return rows


def assert_present_weights(rows):
    """The second step's weights are the first's no more: from an old copy it would be far off."""
    for row in rows:
        assert row["engine/logprob_difference_max"] < 1e-3


def test_grpo_trains_with_colocated_vllm(tmp_path):
    assert_present_weights(train(tmp_path, str(WARM), engine="vllm_colocate"))


@pytest.mark.slow
def test_a_policy_trains_with_colocated_vllm_that_samples_all_the_time(tmp_path):
    """Turns are sampled while the trainer computes, and go on with new weights after an update."""
    rows = train(
        tmp_path, str(WARM), engine="vllm_colocate", max_policy_age=2, steps=4,
        algorithm="reinforce_pp",  # learns from the first step, whatever its groups are
    )  # fmt: skip
    assert rows[0]["staleness"] == 0
    assert all(0 <= row["staleness"] <= 2 and "engine/kl" in row for row in rows)
    assert rows[0]["engine/logprob_difference_max"] < 1e-3
    assert rows[0]["grad_norm"] > 0
    for before, row in pairwise(rows):
        if before["grad_norm"] > 0 and row["staleness"] > 0:
            assert row["engine/logprob_difference_max"] > 1e-3


def test_grpo_trains_with_vllm_servers(tmp_path, stage):
    untied_model().save_pretrained(tmp_path / "policy")
    AutoTokenizer.from_pretrained(WARM).save_pretrained(tmp_path / "policy")
    for local in stage.servers["untied"]:
        local.restart()  # one that a test killed; the others stay as they are
    arguments = {"servers": [local.address for local in stage.servers["untied"]]}
    policy = str(tmp_path / "policy")
    rows = train(tmp_path, policy, engine={"type": "vllm", **arguments})
    assert_present_weights(rows)
