"""Black-box agents in training: rows as of our own agent, and what becomes of crashed ones."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import black_boxes
import hosting
from agentgym_env.cli import main
from agentgym_env.errors import ConfigError
from agentgym_env.process_guard import ProcessGuard
from agentgym_env.run_store import RunStore
from agentgym_gateway.programs import EpisodeAccess
from agentgym_train import AgentTrainer, RLConfig
from agentgym_train.config.policy import PolicyConfig, RolloutLimits
from agentgym_train.config.read import config_from
from agentgym_train.data.collect import CollectConfig, collect, collected
from agentgym_train.data.tokenize import EpisodeTokenizer
from agentgym_train.rollout.episode import EpisodeSpec
from agentgym_train.rollout.policy import make_policy
from agentgym_train.rollout.runner import RolloutRunner
from agentgym_train.training.step_metrics import TooManyLost
from tests.gateway.test_gateway import Says
from tests.train.small import save_tiny_policy, textcraft_tokenizer, tiny_model
from waiting import LIMIT_S, until

pytestmark = pytest.mark.usefixtures("guess_server")
QUIET = Console(quiet=True)
PROGRAM = f"{sys.executable} {Path(__file__).parents[1] / 'support' / 'black_boxes.py'}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


def settings(model, **changes):
    return PolicyConfig(
        model=model, turn_max_tokens=6, max_tokens=600, instruction="", **changes
    )  # fmt: skip


def play(model, agent, tasks="1234", horizon=3, env=hosting.GUESS, env_kwargs=None, begun=None,
         gateway=None, **limits):  # fmt: skip
    """The episodes of a black-box agent, in the guessing world if no other is named.

    `begun(runner, gateway)` is called before they are played.
    """
    policy = make_policy(settings(model, agent={"type": agent, **(gateway or {})}))
    with RolloutRunner(env, env_kwargs=env_kwargs, limits=RolloutLimits(**limits)) as runner:
        try:
            if begun is not None:
                begun(runner, policy.black_box.gateway)
            specs = [EpisodeSpec(task, 0, split="train") for task in tasks]
            return runner.collect(policy.actors(), specs, horizon)
        finally:
            runner.run(policy.close())


@pytest.mark.parametrize(
    "agent",
    ["callable:black_boxes:plain", "callable:black_boxes:waiting", f"command:{PROGRAM} plain"],
)
def test_a_plain_agent_gives_the_rows_of_our_own(model, agent):
    """The same messages: so replaying the texts under our agent gives the same ids."""
    episodes = play(model, agent)
    assert {e.outcome for e in episodes} <= {"horizon", "success"}
    tokenizer = textcraft_tokenizer()
    for episode in episodes:
        (row,) = episode.rows
        assert len(row.turn_ends) == len(episode.turns)
        again = EpisodeTokenizer(tokenizer, settings(model)).rows(episode)[0]
        assert again.prompt_ids == row.prompt_ids
        own = [i for i, m in zip(row.completion_ids, row.loss_mask, strict=True) if not m]
        other = [i for i, m in zip(again.completion_ids, again.loss_mask, strict=True) if not m]
        cut = [end for end in row.turn_ends if row.completion_ids[end - 1] != 2]
        assert len(own) - len(other) in range(len(cut) + 1), "ends of cut turns are context"


def test_an_episode_that_the_agent_gives_up_is_a_failure_and_has_no_reward(model):
    for episode in play(model, "callable:black_boxes:gives_up"):
        assert (episode.outcome, episode.reward) == ("failure", 0.0)
        assert [turn.action for turn in episode.turns] == [""]


def test_an_agent_that_asks_nothing_is_lost_and_never_a_zero(model):
    """Most likely it has another base URL, or swallows its errors."""
    for episode in play(model, "callable:black_boxes:idle", retries=0):
        assert episode.outcome == "agent_lost" and "had sent no request" in episode.error


def test_a_reward_that_the_agent_posts_counts(model):
    for episode in play(model, "callable:black_boxes:judged"):
        assert (episode.outcome, episode.reward, episode.success) == ("success", 0.5, True)


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("callable:black_boxes:broken_at_once", "RuntimeError: the agent has a bug"),
        (f"command:{PROGRAM} crash", "status 3: something went wrong here"),
        (f"command:{PROGRAM} killed", "status -9"),
    ],
)
def test_an_agent_that_crashes_before_a_reply_is_lost_and_never_a_zero(model, agent, said):
    for episode in play(model, agent, tasks="12", retries=1):
        assert (episode.outcome, episode.attempts, episode.rows) == ("agent_lost", 2, [])
        assert said in episode.error


def test_a_crash_can_count_as_a_failure_of_the_policy(model):
    policy = make_policy(
        settings(model, agent={"type": "callable:black_boxes:broken", "crashes": "failure"})
    )
    with RolloutRunner(hosting.GUESS) as runner:
        try:
            (episode,) = runner.collect(policy.actors(), [EpisodeSpec("1", 0)], 3)
        finally:
            runner.run(policy.close())
    assert (episode.outcome, episode.attempts, len(episode.turns)) == ("failure", 1, 1)


def test_an_agent_that_crashes_once_is_started_again(model, tmp_path):
    episodes = play(model, f"command:{PROGRAM} once {tmp_path}", tasks="12", retries=1)
    for episode in episodes:
        assert episode.attempts == 2 and episode.outcome in ("horizon", "success")


def leaping(leap_when, condition):
    """For `begun` of `play`: once `condition(runner, gateway)` holds, all time limits are over."""
    return lambda runner, gateway: leap_when(
        lambda: condition(runner, gateway), runner._runner.get_loop()
    )


def filled(file):
    return file.exists() and file.read_text().endswith("\n")


def test_an_agent_that_hangs_after_a_call_runs_out_of_time(model, tmp_path, leap_when):
    file = tmp_path / "pids"
    agent = f"command:{PROGRAM} hang_after_a_call {file}"
    begun = leaping(leap_when, lambda *_: filled(file))
    (episode,) = play(model, agent, tasks="1", begun=begun, episode_timeout_s=60.0)
    assert episode.outcome == "policy_timeout" and len(episode.rows) == 1


def test_an_agent_that_waits_for_its_first_reply_runs_out_of_time(model, leap_when):
    def begun(runner, gateway):
        gateway._engine = engine = Says("one")
        engine.release = asyncio.Event()
        played = gateway._episodes
        asked = leaping(leap_when, lambda *_: any(e.reserved for e in list(played.values())))
        asked(runner, gateway)

    (episode,) = play(
        model,
        "callable:black_boxes:plain",
        "1",
        begun=begun,
        episode_timeout_s=60.0,
        retries=0,
    )
    assert (episode.outcome, episode.error, episode.turns) == ("policy_timeout", None, [])


def test_an_episode_that_no_program_takes_is_lost(model, tmp_path, leap_when):
    begun = leaping(leap_when, lambda _, gateway: gateway._offers)
    (episode,) = play(
        model, "external", "1", begun=begun, gateway={"address_file": str(tmp_path / "address")},
        episode_timeout_s=60.0, retries=0,
    )  # fmt: skip
    assert episode.outcome == "agent_lost" and "no program took the episode" in episode.error


def test_an_agent_that_hangs_is_lost_and_its_process_is_ended(model, tmp_path, leap_when):
    file = tmp_path / "pids"
    begun = leaping(leap_when, lambda *_: filled(file))
    (episode,) = play(
        model, f"command:{PROGRAM} hang {file}", tasks="1", begun=begun,
        episode_timeout_s=60.0,
        retries=0,
    )  # fmt: skip
    assert episode.outcome == "agent_lost" and "sent no request in 60 s" in episode.error
    for pid in map(int, file.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_child_process_that_an_agent_leaves_behind_holds_up_nothing(model, tmp_path):
    """It keeps the agent's output open, in a session of its own that no signal reaches."""
    file, script = tmp_path / "pid", tmp_path / "agent.sh"
    script.write_text(
        f"setsid sh -c 'echo $$ > {file}; exec sleep 600' &\n"
        f"until [ -s {file} ]; do sleep 0.05; done\n"
    )
    (episode,) = play(model, f"command:sh {script}", tasks="1", retries=0)
    assert episode.outcome == "agent_lost"
    os.kill(int(file.read_text()), signal.SIGKILL)  # raises if it has ended before


def test_the_error_of_a_crashed_agent_names_its_own_line(model, tmp_path):
    script = tmp_path / "agent.py"
    script.write_text("import json\nprint('begun')\nx = {}\njson.loads(x['answer'])\n")
    (episode,) = play(model, f"command:{sys.executable} {script}", tasks="1", retries=0)
    assert episode.error.endswith(f"status 1: KeyError: 'answer' | {script}:4")


def test_a_guard_that_is_killed_is_replaced():
    guard = ProcessGuard()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as guarded:
        guard.add(guarded.pid)
        first = guard._process
        first.kill()
        first.wait()
        guard.remove(1 << 30)
        assert guard._process.pid != first.pid
        guard._end()
        assert guarded.wait(120) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_agents_end_with_a_run_that_is_ended_by_a_signal(model, tmp_path, how):
    pids = tmp_path / "pids"
    words = [
        sys.executable, "-c", "from agentgym_env.cli import main; main()", "collect",
        "--env", "textcraft", "--policy", f"hf:{model}",
        "--agent", f"command:{PROGRAM} hang {pids}", "--n", "1", "--turn-max-tokens", "6",
        "--max-tokens", "600", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    with subprocess.Popen(words) as run:
        until(lambda: pids.exists() and pids.read_text().strip(), process=run)
        run.send_signal(how)
        assert run.wait(LIMIT_S) == -how
    for pid in pids.read_text().split():
        until(lambda pid=pid: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize("task", ["reset", "step"])
def test_an_environment_that_hangs_is_lost_and_never_the_policys_fault(
    model, task, tmp_path, leap_when
):
    hangs = tmp_path / "hangs"
    (episode,) = play(
        model, "callable:black_boxes:plain", [task], env="worlds:Hangs",
        env_kwargs={"begun": str(hangs)}, begun=leaping(leap_when, lambda *_: hangs.exists()),
        episode_timeout_s=60.0, retries=0,
    )  # fmt: skip
    assert episode.outcome == "environment_lost"
    assert "s for the environment; use more servers" in episode.error


def test_an_agent_may_exit_and_the_run_goes_on(model):
    episodes = play(model, "callable:black_boxes:leaves", "12", retries=0)
    assert [e.outcome for e in episodes] == ["failure"] * 2
    (episode,) = play(model, "callable:black_boxes:leaves_with_error", "1", retries=0)
    assert (episode.outcome, "no such option" in episode.error) == ("agent_lost", True)


def test_callables_do_not_wait_for_one_another(model):
    """Each waits until all have begun: a pool of threads has six on two processors."""
    episodes = play(model, "callable:black_boxes:together", "1" * black_boxes.TOGETHER, retries=0)
    assert {e.error for e in episodes} == {
        "AgentLost: the agent ended and had sent no request that was accepted"
    }


def test_observations_that_no_variable_can_hold_are_cut(model):
    access = EpisodeAccess("http://x/v1", "k", "t", 0, "a\0\ud800" + "é" * 200_000, "", 3)
    text = access.environ["AGENTGYM_OBSERVATION"]
    assert text.startswith("a\N{REPLACEMENT CHARACTER}é")
    assert len(text.encode()) <= 100_000
    subprocess.run(["true"], env=access.environ, check=True)


def test_an_open_quote_in_a_command_is_a_wrong_setting(model):
    with pytest.raises(ConfigError, match="No closing quotation"):
        play(model, "command:sh -c 'x")


@pytest.mark.slow
def test_agents_go_on_while_the_trainer_computes(model, tmp_path):
    args = RLConfig(
        model=model, env=hosting.GUESS, output_dir=str(tmp_path / "run"), horizon=[12], steps=6,
        prompts_per_step=2, num_generations=2, turn_max_tokens=24, max_tokens=900, instruction="",
        agent="callable:black_boxes:plain", max_policy_age=2,
        eval={"before": False, "after": False},
    )  # fmt: skip
    with AgentTrainer(args=args, console=QUIET) as trainer:
        trainer.train()
    rows, _ = RunStore.open(tmp_path / "run").metrics()
    assert [row["lost"] for row in rows] == [0] * 6
    assert rows[0]["staleness"] == 0 and all(0 <= row["staleness"] <= 2 for row in rows)


def test_a_program_elsewhere_takes_the_episodes(model, tmp_path):
    file = tmp_path / "new" / "gateway.json"
    where = {"type": "external", "address_file": str(file)}
    policy = make_policy(settings(model, agent=where))
    with RolloutRunner(hosting.GUESS) as runner:
        runner.run(policy.black_box.gateway.start())
        assert file.stat().st_mode & 0o077 == 0, "it has a key, for its owner alone"
        place = json.loads(file.read_text())
        words = [*PROGRAM.split(), "claim", place["base_url"], place["key"]]
        with subprocess.Popen(words) as process:
            try:
                specs = [EpisodeSpec(task, 0) for task in "123"]
                episodes = runner.collect(policy.actors(), specs, 3)
            finally:
                process.terminate()
                runner.run(policy.close())
    found = [(len(e.turns) > 0, e.outcome, e.error) for e in episodes]
    assert all(turns and outcome in ("horizon", "success") for turns, outcome, _ in found), found


def test_a_run_trains_and_resumes_with_a_black_box_agent(model, tmp_path):
    args = RLConfig(
        model=model, env=hosting.GUESS, output_dir=str(tmp_path / "run"), horizon=[3], steps=2,
        prompts_per_step=2, num_generations=2, eval={"per_category": 1, "split": "test"},
        turn_max_tokens=6, max_tokens=600, instruction="", agent="callable:black_boxes:plain",
        keep_tokens="all", save_every=1,
    )  # fmt: skip
    with AgentTrainer(args=args, console=QUIET) as trainer:
        metrics = trainer.train()
    assert metrics["sampled_tokens"] > 0 and metrics["lost"] == 0
    episodes, _ = RunStore.open(tmp_path / "run").trajectories("train")
    assert len(episodes) == 8
    lost = replace(args, agent="callable:black_boxes:broken", output_dir=str(tmp_path / "lost"))
    lost = replace(lost, eval={"before": False})
    with (
        AgentTrainer(args=lost, console=QUIET) as trainer,
        pytest.raises(TooManyLost, match=r"4 agent_crashed.*gateway.crashes=failure"),
    ):
        trainer.train()


def test_a_step_in_which_nothing_is_sampled_is_reported(model, tmp_path, caplog):
    config = RLConfig(
        model=model, env=hosting.GUESS, output_dir=str(tmp_path / "run"), horizon=[3], steps=1,
        prompts_per_step=1, num_generations=2, eval={"before": False, "after": False},
        agent={"type": "callable:black_boxes:idle", "crashes": "failure"},
        turn_max_tokens=6, max_tokens=600, instruction="",
    )  # fmt: skip
    with AgentTrainer(args=config, console=QUIET) as trainer:
        trainer.train()
    assert "step 0: no episode has a turn (failure)" in caplog.text


def test_collections_and_evaluations_take_black_box_agents(model, tmp_path):
    config = CollectConfig(
        env=hosting.GUESS, model=model, output_dir=str(tmp_path / "run"), n=3, horizon=3,
        turn_max_tokens=6, max_tokens=600, instruction="", agent="callable:black_boxes:plain",
    )  # fmt: skip
    assert collect(config, QUIET) == 0
    found, _ = collected(RunStore.open(tmp_path / "run"))
    assert len(found) == 3 and all(episode.tokens for episode in found)
    wrong = replace(config, model="openai:m@http://127.0.0.1:9/v1", output_dir=str(tmp_path / "x"))
    with pytest.raises(ConfigError, match="needs a policy whose tokens are sampled here"):
        collect(wrong, QUIET)


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ("command:", "is incomplete"),
        ("external:now", "has too much"),
        ("external", "needs address_file"),
        ("callable:nothing.there:run", "no agent"),
        ("command:/no/such/program", "there is no program '/no/such/program'"),
        ("callable:black_boxes:plian", "no agent .* It is package.module:function"),
        ("black_boxes:waiting", "is a coroutine function; .* write `callable:black_boxes:waiting`"),
        ("black_boxes:plain", "cannot be made: .* write `callable:black_boxes:plain`"),
        ("comand:x", "or a black box: callable, command, external; did you mean command"),
        ("my-kind:x", "or of a package that is not installed"),
        ("externl", "did you mean external"),
    ],
)
def test_an_agent_that_cannot_be_started_says_so(model, agent, message):
    with pytest.raises(ConfigError, match=message):
        settings(model, agent=agent).check_policy()
        play(model, agent, tasks="1")


def test_settings_of_the_gateway_need_a_black_box(model):
    with pytest.raises(ConfigError, match="unknown key port in agent of type plain"):
        settings(model, agent={"type": "plain", "port": 8100}).check_policy()


def test_a_config_may_write_the_command_as_yaml_reads_it():
    values = {"env": "textcraft", "model": "hub/id", "output_dir": "x"}
    config = config_from({**values, "agent": {"command": "python agent.py --fast"}})
    assert config.agent == "command:python agent.py --fast"


def test_the_event_loop_of_the_rollouts_is_left_clean(model):
    async def tasks():
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    policy = make_policy(settings(model, agent="callable:black_boxes:plain"))
    with RolloutRunner(hosting.GUESS) as runner:
        runner.collect(policy.actors(), [EpisodeSpec("1", 0)], 3)
        runner.run(policy.close())
        assert runner.run(tasks()) == []


def test_a_wrong_setting_of_the_gateway_is_rejected():
    values = {"env": "textcraft", "model": "hub/id", "output_dir": "x"}
    with pytest.raises(ConfigError, match=r"unknown key prot in agent; did you mean port\?"):
        config_from({**values, "agent": {"type": "command:true", "prot": 8100}})
    with pytest.raises(ConfigError, match=r"agent\.port must be an integer, got 'first'"):
        config_from({**values, "agent": {"type": "command:true", "port": "first"}})
    with pytest.raises(ConfigError, match=r"agent\.port is at most 65535, got 70000"):
        config_from({**values, "agent": {"type": "command:true", "port": 70_000}})


def test_the_command_rejects_a_missing_program_before_it_loads_the_model(capfd):
    with pytest.raises(SystemExit) as end:
        main(["gateway", "--policy", "hf:no/such-model", "--", "no-such-program", "agent.py"])
    assert end.value.code == 2 and "there is no program 'no-such-program'" in capfd.readouterr().err


def test_the_command_shows_what_would_be_trained_on(model, capfd):
    def gateway(*agent):
        options = f"--policy {model} --env {hosting.GUESS} --turn-max-tokens 6 --max-tokens 600"
        with pytest.raises(SystemExit) as end:
            main(["gateway", *options.split(), "--", *PROGRAM.split(), *agent])
        return end.value.code or 0, "".join(capfd.readouterr())

    status, said = gateway("plain")
    assert status == 0 and "calls," in said and "row 1:" in said, said
    status, said = gateway("crash")
    assert status == 1 and "went wrong here" in said and "ended with status 3" in said, said


def test_the_command_ends_turns_at_the_models_own_ends(tmp_path, capfd):
    """Without a norm all logits are equal: greedy sampling gives token 0, the second end."""
    model = tiny_model()
    model.model.norm.weight.data.zero_()
    model.generation_config.eos_token_id = [2, 0]
    model.save_pretrained(tmp_path)
    textcraft_tokenizer().save_pretrained(tmp_path)
    options = f"--policy {tmp_path} --env {hosting.GUESS} --horizon 1 --temperature 0"
    with pytest.raises(SystemExit) as end:
        main(
            ["gateway", *options.split(), "--turn-max-tokens", "6", "--", *PROGRAM.split(), "plain"]
        )
    said = "".join(capfd.readouterr())
    assert not end.value.code and "1 calls, 1 sampled tokens in 1 rows" in said, said
