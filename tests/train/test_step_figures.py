"""The figures of a step's episodes."""

from __future__ import annotations

import msgspec

from agentgym_env.trajectory import Tokens, Trajectory, Turn
from agentgym_train.rollout.buffer import GroupBatch
from agentgym_train.rollout.groups import Group
from agentgym_train.training.step_metrics import Step, StepShare


def episode(*versions, outcome="success", further=()) -> Trajectory:
    def row(versions):
        size = len(versions)
        mask = [int(v >= 0) for v in versions]
        return Tokens([1], [2] * size, mask, [0.0] * size, list(versions), [size])

    return Trajectory(
        env="e", task="t", seed=0, instruction="", observation="", turns=[], outcome=outcome,
        policy="p", horizon=1, tokens=row(versions), further_rows=[row(v) for v in further],
    )  # fmt: skip


def share(*episodes, rejected=(), dropped=0, step=5, seconds=1.5, env=0):
    """What one process says of a step with one group of these episodes."""
    old = [Group(0, "old") for _ in range(dropped)]
    replaced = [Group(0, "t", episodes=list(rejected), rejected="dull")] if rejected else []
    return StepShare.from_batch(
        GroupBatch([Group(env, "t", episodes=list(episodes))], replaced, old), step, seconds
    )


def metrics_of(*shares, envs=("e",)):
    return Step(shares, group_size=2).metrics(envs)


def test_staleness_is_the_mean_age_of_the_trained_tokens_of_all_rows():
    played = [episode(3, -1, 5, further=[[5, 5]]), episode(1, outcome="engine_lost")]
    own = share(*played, dropped=1)
    assert (own.sampled, own.trained_tokens, own.behind, own.seconds) == (4, 4, 2, 1.5)
    figures = metrics_of(own, share(*[episode(5)] * 4, seconds=2.5))
    assert (figures["staleness"], figures["dropped"], figures["rollout_seconds"]) == (0.25, 2, 2.5)
    assert (figures["sampled_tokens"], figures["lost"], figures["horizon"]) == (8, 1, 1)


def test_an_episode_of_a_rejected_group_does_not_count_in_the_staleness():
    figures = metrics_of(share(episode(4), rejected=[episode(0)]))
    assert (figures["staleness"], figures["sampled_tokens"]) == (1, 2)


def test_replaced_episodes_are_counted_where_they_cost_something():
    kept, lost = [episode(0), episode(0)], episode(0, outcome="environment_lost")
    lost = msgspec.structs.replace(lost, attempts=3)
    figures = metrics_of(share(*kept, rejected=[lost, episode(0)]))
    assert (figures["lost"], figures["retried"], figures["rejected/dull"]) == (1, 1, 1)
    assert figures["outcome/success"] == 1


def test_metrics_of_an_environment_are_its_own_and_nothing_where_it_has_no_group():
    figures = metrics_of(share(episode(0), env=0), envs=("e", "other"))
    assert (figures["success/e"], figures["episodes/e"], figures["episodes/other"]) == (0, 1, 0)
    assert figures["success/other"] != figures["success/other"]


def test_what_a_long_run_keeps_has_no_tokens():
    own = share(episode(0, further=[[0]]), rejected=[episode(0)])
    assert [t.rows for group in (*own.trained, *own.rejected) for t in group.episodes] == [[], []]
    assert own.trained[0].episodes[0].outcome == "success"


def test_only_turns_that_the_environment_answered_are_steps():
    turns = [
        Turn("I plan", "", "Go on."),
        Turn("no action", "", "Write an action.", info={"invalid_action": True}),
        Turn("act", "look", "You see a door.", info={"turn": 1, "success": False}),
        Turn("act", "", "Nothing happens.", info={"turn": 2, "success": False}),
        Turn("act", "open", ""),
    ]
    played = msgspec.structs.replace(episode(1), turns=turns)
    row = metrics_of(share(played))
    assert row["turns"] == 5 and row["env_steps"] == 2
