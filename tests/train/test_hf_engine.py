"""The transformers engine: exact log-probabilities, whatever is cached, shared or batched."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import nullcontext

import pytest
import torch

from agentgym_env.errors import BadRequest
from agentgym_train.engines.base import EngineLost, Generation, Sampling
from agentgym_train.engines.hf.engine import HFEngine
from tests.train.small import textcraft_tokenizer, tiny_model
from waiting import turned

PROMPTS = [[5, 6, 7], [9, 10, 11, 12, 13, 14, 15], [20], [9, 10, 11, 12]]


def engine_of(model=None) -> HFEngine:
    return HFEngine(model or tiny_model(), textcraft_tokenizer().pad_token_id)


def sampling(seed: int = 0, **changes) -> Sampling:
    return Sampling(**{"max_tokens": 12, "temperature": 1.0, "seed": seed, **changes})


def together(engine: HFEngine, prompts, samplings, conversations=None) -> list[Generation]:
    names = conversations or [None] * len(prompts)

    async def run():
        return await asyncio.gather(
            *(engine.generate(p, s, c) for p, s, c in zip(prompts, samplings, names, strict=True))
        )

    return asyncio.run(run())


def alone(prompt, how) -> Generation:
    return together(engine_of(), [prompt], [how])[0]


@torch.no_grad()
def full_forward_logprobs(model, prompt, generation, temperature=1.0) -> list[float]:
    ids = torch.tensor([prompt + generation.token_ids])  # (1, T)
    logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature  # (n, V)
    logprobs = torch.log_softmax(logits, -1)
    return logprobs.gather(1, ids[0, len(prompt) :, None]).squeeze(1).tolist()


def test_logprobs_are_those_of_a_full_forward_at_the_sampling_temperature():
    engine = engine_of()
    how = [sampling(seed, temperature=0.7) for seed in range(4)]
    for prompt, generation in zip(PROMPTS, together(engine, PROMPTS, how), strict=True):
        assert len(generation.token_ids) == 12
        expected = full_forward_logprobs(engine.model, prompt, generation, 0.7)
        assert generation.logprobs == pytest.approx(expected, abs=2e-5)


def test_what_a_request_samples_does_not_depend_on_its_batch():
    how = [sampling(seed) for seed in range(4)]
    batched = together(engine_of(), PROMPTS, how)
    assert [g.token_ids for g in batched] == [
        alone(p, h).token_ids for p, h in zip(PROMPTS, how, strict=True)
    ]


def test_a_groups_shared_prompt_runs_through_the_model_once():
    engine, widths = engine_of(), []
    engine.model.model.embed_tokens.register_forward_hook(
        lambda _, inputs, __: widths.append(tuple(inputs[0].shape))
    )
    how = [sampling(seed) for seed in range(8)]
    prompt = PROMPTS[1]
    generations = together(engine, [prompt] * 8, how)
    assert widths[0] == (1, len(prompt))
    assert widths[1] == (8, 1)
    assert [g.token_ids for g in generations] == [alone(prompt, h).token_ids for h in how]


def test_a_turn_after_a_kept_cache_is_what_it_is_without_one():
    engine, talk = engine_of(), [object(), object()]
    first = together(engine, PROMPTS[:2], [sampling(1), sampling(2)], talk)
    longer = [p + g.token_ids + [8, 9] for p, g in zip(PROMPTS[:2], first, strict=True)]
    assert len(engine._caches) == 2
    how = [sampling(3), sampling(4)]
    second = together(engine, longer, how, talk)
    for prompt, h, generation in zip(longer, how, second, strict=True):
        fresh = alone(prompt, h)
        assert generation.token_ids == fresh.token_ids
        assert generation.logprobs == pytest.approx(fresh.logprobs, abs=2e-5)


def test_only_the_new_tokens_of_a_turn_run_through_the_model():
    engine, widths = engine_of(), []
    (first,) = together(engine, [PROMPTS[1]], [sampling(1)], ["talk"])
    engine.model.model.embed_tokens.register_forward_hook(
        lambda _, inputs, __: widths.append(inputs[0].shape[1])
    )
    together(engine, [PROMPTS[1] + first.token_ids + [8, 9]], [sampling(2)], ["talk"])
    # The last sampled token was never run, then come the two of the observation.
    assert widths[0] == 3


def test_a_cache_that_is_no_prefix_of_the_prompt_is_not_used():
    engine = engine_of()
    together(engine, [PROMPTS[1]], [sampling(1)], ["talk"])
    other = [30, 31, 32, 33]
    (generation,) = together(engine, [other], [sampling(2)], ["talk"])
    assert generation.token_ids == alone(other, sampling(2)).token_ids


def test_forgotten_conversations_and_old_weights_leave_no_cache():
    engine = engine_of()
    together(engine, PROMPTS[:2], [sampling(1), sampling(2)], ["a", "b"])
    asyncio.run(engine.forget("a"))
    assert set(engine._caches) == {"b"}
    asyncio.run(engine.update_weights(tiny_model(seed=1), version=7))
    assert not engine._caches
    (generation,) = together(engine, [PROMPTS[0]], [sampling(1)])
    assert generation.version == 7
    expected = full_forward_logprobs(tiny_model(seed=1), PROMPTS[0], generation)
    assert generation.logprobs == pytest.approx(expected, abs=2e-5)


def test_a_turn_ends_with_its_stop_token_or_at_its_length():
    free = alone(PROMPTS[0], sampling(5))
    stop = free.token_ids[3]
    (stopped,) = together(engine_of(), [PROMPTS[0]], [sampling(5, stop_ids=(stop,))])
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert (stopped.finish_reason, free.finish_reason) == ("stop", "length")


def test_rows_that_end_early_do_not_disturb_those_that_go_on():
    lengths = [1, 12, 3, 2]
    how = [sampling(seed, max_tokens=n) for seed, n in enumerate(lengths)]
    generations = together(engine_of(), PROMPTS, how)
    assert [len(g.token_ids) for g in generations] == lengths
    for prompt, h, generation in zip(PROMPTS, how, generations, strict=True):
        assert generation.token_ids == alone(prompt, h).token_ids


def test_temperature_zero_takes_the_likeliest_token():
    engine = engine_of()
    (generation,) = together(engine, [PROMPTS[1]], [sampling(temperature=0.0, max_tokens=1)])
    with torch.no_grad():
        expected = int(engine.model(torch.tensor([PROMPTS[1]])).logits[0, -1].argmax())
    assert generation.token_ids == [expected]


def test_a_failing_model_loses_every_waiter_and_the_engine_goes_on():
    engine = engine_of()
    handle = engine.model.register_forward_pre_hook(_explode)

    async def run():
        asked = [engine.generate(p, sampling()) for p in PROMPTS]
        lost = await asyncio.gather(*asked, return_exceptions=True)
        handle.remove()
        return lost, await engine.generate(PROMPTS[0], sampling())

    lost, generation = asyncio.run(run())
    assert all(isinstance(error, EngineLost) for error in lost)
    assert "RuntimeError: out of memory" in str(lost[0])
    assert len(generation.token_ids) == 12


@pytest.mark.parametrize("rows", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_an_engine_that_runs_out_of_memory_samples_the_same_turns_with_fewer_at_once(rows, caplog):
    engine = engine_of()

    def limited(_, inputs):
        if len(inputs[0]) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    engine.model.model.embed_tokens.register_forward_pre_hook(limited)
    prompts = [[*prompt, 5 + n] for n in range(3) for prompt in PROMPTS]
    how = [sampling(seed) for seed in range(len(prompts))]
    found = together(engine, prompts, how, list(range(len(prompts))))
    assert [g.token_ids for g in found] == [
        alone(p, h).token_ids for p, h in zip(prompts, how, strict=True)
    ]
    assert "out of memory with 12 turns at once" in caplog.text
    # The next turns start with the smaller batch and with few caches, and need no further attempt.
    caplog.clear()
    further = [[*p, *g.token_ids, 7] for p, g in zip(prompts, found, strict=True)]
    again = together(engine, further, how, list(range(len(prompts))))
    assert [g.token_ids for g in again] == [
        alone(p, h).token_ids for p, h in zip(further, how, strict=True)
    ]
    # Threads of earlier tests may say something of their own.
    assert not [r for r in caplog.records if r.name.startswith("agentgym_train.engines")]


def test_a_turn_that_does_not_fit_alone_is_lost():
    engine = engine_of()
    engine.model.model.embed_tokens.register_forward_pre_hook(_out_of_memory)
    with pytest.raises(EngineLost, match="OutOfMemoryError"):
        together(engine, [PROMPTS[0]], [sampling()])


def _out_of_memory(*_):
    raise torch.OutOfMemoryError("CUDA out of memory.")


def test_a_failure_before_any_turn_runs_loses_the_waiting_ones_and_the_engine_works_again(
    monkeypatch,
):
    engine = engine_of()
    monkeypatch.setattr(engine, "_sampling", _explode)

    async def failing():
        asked = [engine.generate([5, 6, seed], sampling(seed)) for seed in range(3)]
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 120)

    assert all(isinstance(found, EngineLost) for found in asyncio.run(failing()))
    monkeypatch.undo()
    assert asyncio.run(engine.generate([5, 6, 7], sampling())).token_ids


def test_an_empty_prompt_is_refused():
    with pytest.raises(BadRequest, match="at least one token"):
        together(engine_of(), [[]], [sampling()])


def _explode(*_):
    raise RuntimeError("out of memory")


def test_turns_join_and_leave_while_another_goes_on():
    """A short turn waits neither for the end of a long one nor for one another's."""
    talk, forwards, model = ["long", "short"], [], tiny_model()
    asked = {at: threading.Event() for at in (2, 40, 80)}
    """The forward passes of the long turn that wait: for two short ones, and for their end."""

    def wait(*_):
        forwards.append(len(forwards))
        if event := asked.get(len(forwards)):
            assert event.wait(120)

    model.register_forward_pre_hook(wait)
    engine = engine_of(model)
    how = [sampling(1, max_tokens=150), sampling(2, max_tokens=20), sampling(3, max_tokens=5)]

    async def run():
        async def beside(prompt, how, at):
            turn = asyncio.create_task(engine.generate(prompt, how, talk[1]))
            for _ in range(20):
                await asyncio.sleep(0)
            asked[at].set()
            return await turn

        long = asyncio.create_task(engine.generate(PROMPTS[1], how[0], talk[0]))
        await turned(lambda: forwards)
        first = await beside(PROMPTS[0], how[1], 2)
        longer = PROMPTS[0] + first.token_ids + [8, 9]
        second = await beside(longer, how[2], 40)
        assert not long.done()
        asked[80].set()
        return longer, [await long, first, second]

    longer, found = asyncio.run(run())
    for prompt, h, generation in zip([PROMPTS[1], PROMPTS[0], longer], how, found, strict=True):
        expected = alone(prompt, h)
        assert generation.token_ids == expected.token_ids
        assert generation.logprobs == pytest.approx(expected.logprobs, abs=2e-5)
    assert set(engine._caches) == set(talk) and not engine._running


def test_conversations_that_come_and_go_are_sampled_as_each_alone():
    """Rows are reused, moved, and move to larger buffers; some turns are given up."""
    engine = HFEngine(tiny_model(), textcraft_tokenizer().pad_token_id, max_batch=7)
    played: list[tuple[list[int], Sampling, Generation]] = []

    async def talk(number: int) -> None:
        draws, ids = random.Random(number), list(PROMPTS[number % 4])
        for turn in range(4):
            how = sampling(number * 10 + turn, max_tokens=draws.randrange(1, 40))
            await asyncio.sleep(draws.random() * 0.02)
            asked = asyncio.create_task(engine.generate(ids, how, number))
            if draws.random() < 0.2:
                await asyncio.sleep(draws.random() * 0.02)
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
                return
            played.append((ids, how, await asked))
            new = [draws.randrange(3, 60) for _ in range(draws.choice((1, 3, 90)))]
            ids = ids + played[-1][2].token_ids + new

    async def run() -> None:
        await asyncio.gather(*(talk(number) for number in range(12)))

    asyncio.run(run())
    assert len(played) > 20
    for ids, _, generation in played:
        expected = full_forward_logprobs(engine.model, ids, generation)
        assert generation.logprobs == pytest.approx(expected, abs=2e-5)
    for ids, how, generation in played[::5]:
        assert generation.token_ids == alone(ids, how).token_ids


def test_an_engine_outlives_the_loops_that_ask_it():
    """The thread may still be at the end of one loop's turns when the next loop asks."""
    engine = engine_of()
    expected = alone(PROMPTS[0], sampling(1, max_tokens=1)).token_ids
    for _ in range(200):
        (found,) = together(engine, PROMPTS[:1], [sampling(1, max_tokens=1)])
        assert found.token_ids == expected


def test_no_more_turns_are_sampled_side_by_side_than_it_is_told():
    rows = []
    engine = HFEngine(tiny_model(), textcraft_tokenizer().pad_token_id, max_batch=2)
    engine.model.model.embed_tokens.register_forward_hook(
        lambda _, inputs, __: rows.append(inputs[0].shape[0])
    )
    how = [sampling(seed, max_tokens=4 + seed) for seed in range(4)]
    generations = together(engine, PROMPTS, how)
    assert max(rows) == 2 and [len(g.token_ids) for g in generations] == [4, 5, 6, 7]
    for prompt, h, generation in zip(PROMPTS, how, generations, strict=True):
        assert generation.token_ids == alone(prompt, h).token_ids


def waiting(model, started, go_on):
    """The model with forwards that tell when they begin, and wait."""

    def wait(*_):
        started.set()
        assert go_on.wait(120)

    model.register_forward_pre_hook(wait)
    return model


@pytest.mark.parametrize("copies", [False, True])
def test_an_update_waits_for_the_turns_under_way_and_later_turns_for_the_update(copies):
    started, go_on = threading.Event(), threading.Event()
    old, new = waiting(tiny_model(seed=0), started, go_on), tiny_model(seed=1)
    engine = engine_of(old)
    if copies:
        engine.keep_own_weights()

    async def run():
        await engine.update_weights(old, 3)
        early = asyncio.create_task(engine.generate(PROMPTS[0], sampling(1)))
        await asyncio.to_thread(started.wait, 120)
        update = asyncio.create_task(engine.update_weights(new, 4))
        await asyncio.sleep(0)
        assert not early.done() and engine.version == 3
        go_on.set()
        late = asyncio.create_task(engine.generate(PROMPTS[0], sampling(1)))
        await update
        return await early, await late

    early, late = asyncio.run(run())
    assert (early.version, late.version) == (3, 4)
    for seed, generation in ((0, early), (1, late)):
        model = tiny_model(seed=seed)
        expected = full_forward_logprobs(model, PROMPTS[0], generation)
        assert generation.logprobs == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("end", ["sleep", "close"])
def test_an_engine_at_rest_computes_no_turn_that_was_given_up(end):
    started, go_on, forwards = threading.Event(), threading.Event(), []
    model = waiting(tiny_model(), started, go_on)
    model.register_forward_hook(lambda *_: forwards.append(model.training))
    engine = engine_of(model.train())

    async def run():
        turn = asyncio.create_task(engine.generate(PROMPTS[0], sampling(max_tokens=400), "talk"))
        await asyncio.to_thread(started.wait, 120)
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        go_on.set()
        await getattr(engine, end)()
        assert len(forwards) < 100, "it stopped long before its end"
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not engine._running
        assert model.training and (end == "close" or not engine._caches)

    asyncio.run(run())
    assert not any(forwards)


def test_copies_of_the_weights_in_bfloat16_change_nothing_and_follow_updates(monkeypatch):
    model = tiny_model()
    how = [sampling(seed) for seed in range(len(PROMPTS))]

    def sampled(engine: HFEngine) -> list[tuple[list[int], list[float]]]:
        return [(g.token_ids, g.logprobs) for g in together(engine, PROMPTS, how)]

    def fresh() -> HFEngine:
        return HFEngine(model, textcraft_tokenizer().pad_token_id, dtype="bfloat16")

    engine = fresh()
    with_copies = sampled(engine)
    assert engine._reduced and all("forward" not in vars(module) for module in model.modules())
    with monkeypatch.context() as patched:
        patched.setattr(
            "agentgym_train.engines.hf.engine.reduced_weights", lambda *_: nullcontext()
        )
        assert sampled(fresh()) == with_copies
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    asyncio.run(engine.update_weights(model, 1))
    assert not engine._reduced
    changed = sampled(engine)
    assert changed == sampled(fresh()) != with_copies
    asyncio.run(engine.sleep())
    assert not engine._reduced
