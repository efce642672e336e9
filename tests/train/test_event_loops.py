"""Every entry works where an event loop runs already, and in any thread."""

import asyncio
import contextlib
import contextvars
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import pytest
import torch
from aiohttp import web
from rich.console import Console
from safetensors.torch import load_file

import hosting
from agentgym_env.errors import ConfigError, UnknownSplit
from agentgym_env.launch import local_server
from agentgym_env.run_store import RunStore
from agentgym_train import AgentTrainer, CollectConfig, RLConfig, collect
from agentgym_train.data.collect import collected
from agentgym_train.data.tokenize import EpisodeTokenizer
from agentgym_train.engines.vllm.served import served_model
from agentgym_train.evaluation.play import evaluate
from agentgym_train.event_loop import LoopRunner, run_async
from agentgym_train.rollout.actors import ExpertActor
from agentgym_train.rollout.runner import RolloutRunner
from tests.train.small import merged, textcraft_tokenizer, tiny_model
from tests.train.test_agent_trainer import SHORT, UNEVEN
from waiting import turned, until

pytestmark = pytest.mark.usefixtures("guess_server")
QUIET = Console(quiet=True)


def in_loop(work):
    """What `work` returns inside `asyncio.run`."""

    async def main():
        return work()

    return asyncio.run(main())


def in_thread(work):
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def in_loop_of_thread(work):
    return in_thread(lambda: in_loop(work))


def trainer_of(folder, **changes):
    args = RLConfig(output_dir=str(folder), **merged(SHORT, changes))
    tokenizer = textcraft_tokenizer()
    return AgentTrainer(tiny_model(), UNEVEN, args, processing_class=tokenizer, console=QUIET)


def trained(folder):
    with trainer_of(folder) as trainer:
        trainer.train()
    return load_file(folder / "model" / "model.safetensors")


@pytest.fixture(scope="module", autouse=True)
def uneven_server():
    """Keeps one server for all trainings."""
    with local_server(UNEVEN):
        yield


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The weights of a training in the main thread, without a loop."""
    return trained(tmp_path_factory.mktemp("plain") / "run")


@pytest.mark.parametrize("somewhere", [in_loop, in_thread])
def test_a_training_gives_the_same_weights_wherever_it_is_called(tmp_path, plain, somewhere):
    found = somewhere(lambda: trained(tmp_path / "run"))
    assert all(torch.equal(found[name], plain[name]) for name in plain)
    assert any(
        not torch.equal(found[name], weights) for name, weights in tiny_model().state_dict().items()
        if name in found
    ), "the training changes nothing"  # fmt: skip


async def test_a_web_request_trains_and_the_server_goes_on_answering(tmp_path):
    async def train(request):
        with trainer_of(tmp_path / request.match_info["name"], steps=1) as trainer:
            return web.json_response({"step": trainer.train()["step"]})

    app = web.Application()
    app.router.add_get("/{name}", train)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = "http://{}:{}".format(*runner.addresses[0])
    try:
        async with aiohttp.ClientSession() as client:
            for name in ("first", "second"):
                async with client.get(f"{address}/{name}") as response:
                    assert (response.status, await response.json()) == (200, {"step": 1})
    finally:
        await runner.cleanup()


def test_a_trainer_made_before_the_loop_trains_in_it_and_is_closed_after_it(tmp_path):
    trainer = trainer_of(tmp_path / "run", steps=1)
    try:
        assert in_loop(trainer.train)["step"] == 1
        assert trainer.evaluate(horizon=1).episodes > 0
    finally:
        trainer.close()


@pytest.mark.parametrize("somewhere", [in_loop, in_thread, in_loop_of_thread])
def test_collect_evaluate_and_tokenize_are_called_anywhere(tmp_path, somewhere):
    config = CollectConfig(env=hosting.GUESS, model="expert", output_dir=str(tmp_path / "run"), n=3)

    def everything():
        status = collect(config, QUIET)
        episodes, _ = collected(RunStore.open(tmp_path / "run"))
        with RolloutRunner(hosting.GUESS) as runner:
            report, _ = evaluate(runner, ExpertActor, split="test", horizon=2)
        rows = EpisodeTokenizer(textcraft_tokenizer()).rows(episodes[0])
        return status, len(episodes), report.success, len(rows)

    assert somewhere(everything) == (0, 3, 1.0, 1)


@pytest.mark.parametrize("somewhere", [in_loop, in_thread])
def test_an_error_of_our_loop_keeps_its_class(somewhere):
    def ask():
        with RolloutRunner(hosting.GUESS) as runner:
            evaluate(runner, ExpertActor, split="no such split", horizon=2)

    with pytest.raises(UnknownSplit, match="no such split"):
        somewhere(ask)
    with hosting.nobody() as address, pytest.raises(ConfigError, match="no vLLM server"):
        somewhere(lambda: served_model(f"http://{address}"))


def test_work_in_the_other_thread_sees_the_context_of_the_caller_and_one_thread_does_all():
    variable, threads = contextvars.ContextVar("variable"), set()

    async def work():
        threads.add(threading.current_thread())
        return variable.get()

    def twice():
        variable.set("given")
        with LoopRunner() as runner:
            return runner.run(work()), runner.run(work())

    assert in_loop(twice) == ("given", "given")
    assert len(threads) == 1 and threading.main_thread() not in threads
    until(lambda: not any(thread.is_alive() for thread in threads), "the thread did not end")


def test_a_call_from_within_our_own_loop_is_an_error_and_does_not_wait_for_itself():
    async def inner():
        return 1

    def nested():
        with LoopRunner() as runner:

            async def outer():
                with contextlib.closing(inner()) as work:
                    return runner.run(work)

            runner.run(outer())

    for somewhere in (in_loop, in_thread):
        with pytest.raises(RuntimeError, match="cannot be called from a running event loop"):
            somewhere(nested)


INTERRUPTED = """
import asyncio, os, signal, sys, threading
from agentgym_train.event_loop import run_async

async def work():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    finally:
        print("cancelled in", "the main" if threading.current_thread() is main else "another")

async def cell():
    try:
        run_async(work())
    except KeyboardInterrupt:
        print("interrupted")

main = threading.main_thread()
if sys.argv[1] == "notebook":  # the kernel's loop, which takes no signal itself
    asyncio.new_event_loop().run_until_complete(cell())
else:
    asyncio.run(cell())
print("goes on")
"""


@pytest.mark.parametrize("kind", ["notebook", "program"])
def test_ctrl_c_cancels_the_work_in_the_other_thread_and_is_raised_to_the_caller(kind):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, kind], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.split("\n") == ["cancelled in another", "interrupted", "goes on", ""]
    assert (done.returncode, done.stderr) == (0, "")


def test_a_training_in_a_thread_leaves_the_signals_alone(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def train():
        with trainer_of(tmp_path / "run", steps=1) as trainer:
            trainer.train()
        seen.append(signal.getsignal(signal.SIGINT))

    in_thread(train)
    assert seen == [before] == [signal.getsignal(signal.SIGINT)]


async def test_a_loop_that_waits_meanwhile_goes_on_with_its_tasks():
    done = []
    task = asyncio.create_task(asyncio.sleep(0, done.append(1)))
    assert run_async(asyncio.sleep(0, "ours")) == "ours"
    await turned(task.done)
    assert done == [1]


@pytest.mark.parametrize("between", [False, True])
def test_a_task_that_exits_the_program_ends_the_call_and_the_runner_can_be_closed(between):
    async def exits():
        raise SystemExit(7)

    def call():
        with LoopRunner() as runner:
            if between:
                runner.run_between_calls()
            with pytest.raises(SystemExit):
                runner.run(exits())
            return runner.run(asyncio.sleep(0, "goes on"))

    assert in_loop(call) == "goes on"
    if between:
        assert call() == "goes on"


def test_tasks_go_on_between_calls_if_asked_to():
    done = threading.Event()

    async def begin():
        asyncio.get_running_loop().call_later(0.01, done.set)

    with LoopRunner() as runner:
        runner.run_between_calls()
        runner.run(begin())
        assert done.wait(60)


def test_a_runner_that_nobody_closes_does_not_keep_the_program_alive():
    code = (
        "import asyncio; from agentgym_train.event_loop import LoopRunner; r = LoopRunner(); "
        "r.run_between_calls(); print(r.run(asyncio.sleep(0, 'done')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
