"""The session table: turns, faults, limits and idle sessions."""

import io
import json
import logging

import pytest
from msgspec import UNSET

from agentgym_env.errors import BadRequest, UnknownSplit
from agentgym_env.wire import CreateRequest, RenewRequest, ResetRequest, SessionRequest, StepRequest
from agentgym_servers.host.logs import JsonLines, configure_logs, event
from agentgym_servers.host.sessions import SessionTable
from hosting import Clock
from worlds import Guess, Trouble, Unmakeable


def table_of(make_env=Guess, **settings) -> SessionTable:
    return SessionTable(make_env, env_id="tests/World-v0", **settings)


def opened(table: SessionTable, count: int = 1) -> list[str]:
    return [reply.session for reply in table.create([CreateRequest()] * count)]


def code(reply) -> str | None:
    return None if reply.error is UNSET else reply.error.code


def step(table: SessionTable, session: str, turn: int, action: str = "x"):
    (reply,) = table.step([StepRequest(session, turn, action)])
    return reply


def reset(table: SessionTable, session: str, **arguments):
    (reply,) = table.reset([ResetRequest(session, **arguments)])
    return reply


def test_an_episode_goes_through_the_table_as_it_does_alone():
    table, env = table_of(), Guess()
    (session,) = opened(table)
    first = reset(table, session, seed=3, task="5")
    observation, info = env.reset(seed=3, options={"task": "5"})
    assert (first.turn, first.observation, first.info) == (0, observation, info)
    reply = step(table, session, 1, "5")
    alone = env.step("5")
    assert (reply.observation, reply.reward, reply.terminated) == alone[:3]
    assert (reply.truncated, reply.info) == alone[3:]


def test_session_names_cannot_be_guessed():
    names = opened(table_of(), 100)
    assert len(set(names)) == 100 and all(len(name) >= 24 for name in names)


def test_a_repeated_turn_gets_the_stored_reply_and_is_not_played_again():
    table = table_of()
    (session,) = opened(table)
    reset(table, session, seed=0, task="5")
    first = step(table, session, 1, "4")
    assert step(table, session, 1, "4") is first
    assert table.figures().steps == 1


def test_a_repeated_turn_with_another_action_is_refused():
    table = table_of()
    (session,) = opened(table)
    reset(table, session, seed=0, task="5")
    step(table, session, 1, "4")
    refused = step(table, session, 1, "5")
    assert code(refused) == "stale_turn" and "another action" in refused.error.message
    assert step(table, session, 2, "5").terminated
    assert code(step(table, session, 2, "4")) == "stale_turn"
    assert table.figures().steps == 2


def test_a_step_that_arrives_late_does_not_reach_the_next_episode():
    table = table_of()
    (session,) = opened(table)
    for episode, started in ((1, "5"), (2, "6")):
        assert reset(table, session, seed=0, task=started, episode=episode).episode == episode
    (late,) = table.step([StepRequest(session, 1, "6", 1)])
    assert code(late) == "stale_turn" and "of episode 1; the session's is 2" in late.error.message
    (reply,) = table.step([StepRequest(session, 1, "5", 2)])
    (again,) = table.step([StepRequest(session, 1, "5", 2)])
    assert again is reply and not reply.terminated
    (late,) = table.step([StepRequest(session, 1, "5", 1)])
    assert code(late) == "stale_turn"
    assert table.figures().steps == 1


def test_a_reset_that_arrives_late_or_twice_does_not_start_another_episode():
    table = table_of()
    (session,) = opened(table)
    first = reset(table, session, task="5", episode=1)  # without a seed, each start differs
    assert reset(table, session, task="5", episode=1) is first
    assert code(reset(table, session, task="6", episode=1)) == "stale_turn"
    step(table, session, 1, "4")
    assert code(reset(table, session, task="5", episode=1)) == "stale_turn"
    assert step(table, session, 2, "5").terminated
    assert reset(table, session, task="5", episode=3).episode == 3
    assert code(reset(table, session, task="5", episode=2)) == "stale_turn"
    # Without a number, as an older client: the next one.
    assert reset(table, session, task="5").episode == 4
    assert reset(table, session, task="5").episode == 5


def test_a_session_can_be_closed_by_the_key_that_its_client_gave_it():
    table, key = table_of(name_prefix="2."), "k" * 16
    (reply,) = table.create([CreateRequest(key=key)])
    assert reply.session == f"2.{key}"
    assert code(table.create([CreateRequest(key=key)])[0]) == "bad_request"
    assert [r.closed for r in table.close([SessionRequest(key), SessionRequest(key)])] == [
        True, False,
    ]  # fmt: skip
    assert len(table) == 0


@pytest.mark.parametrize("turn", [-1, 0, 1, 3, 4, 10**12])
def test_a_turn_that_is_neither_the_next_nor_the_last_is_stale(turn):
    table = table_of()
    (session,) = opened(table)
    reset(table, session, seed=0, task="5")
    step(table, session, 1, "4")
    step(table, session, 2, "4")
    assert code(step(table, session, turn, "4")) == (None if turn == 3 else "stale_turn")


def test_stepping_before_the_reset_or_after_the_end_is_refused():
    table = table_of()
    (session,) = opened(table)
    assert code(step(table, session, 1)) == "episode_over"
    reset(table, session, seed=0, task="5")
    step(table, session, 1, "5")
    assert code(step(table, session, 2)) == "episode_over"
    assert step(table, session, 1, "5").terminated


def test_the_same_session_twice_in_a_batch_takes_its_turns_in_order():
    table = table_of()
    (session,) = opened(table)
    reset(table, session, seed=0, task="5")
    turns = [(1, "1"), (2, "2"), (2, "2"), (2, "9"), (4, "4")]
    replies = table.step([StepRequest(session, turn, action) for turn, action in turns])
    assert [code(reply) for reply in replies] == [None, None, None, "stale_turn", "stale_turn"]
    assert replies[2] is replies[1]


def test_one_bad_item_leaves_the_others_alone():
    table = table_of()
    good, bad = opened(table, 2)
    replies = table.reset(
        [
            ResetRequest(good, seed=0),
            ResetRequest(bad, task="x"),
            ResetRequest("nobody"),
            ResetRequest(bad, split="dev"),
            ResetRequest(bad, task="1", split="test"),
            ResetRequest(bad, seed=-1),
            ResetRequest(bad, seed=2**70),
        ]
    )
    assert [code(reply) for reply in replies] == [
        None, "unknown_task", "unknown_session", "unknown_split", "bad_request", "bad_request",
        "bad_request",
    ]  # fmt: skip


def test_a_refused_reset_leaves_the_old_episode_as_it_was():
    table = table_of()
    (session,) = opened(table)
    reset(table, session, seed=0, task="5")
    step(table, session, 1, "4")
    assert code(reset(table, session, task="x")) == "unknown_task"
    assert step(table, session, 2, "5").terminated


def test_a_world_that_raises_loses_its_episode_but_not_its_session(caplog):
    table = table_of(Trouble)
    (session,) = opened(table)
    reset(table, session, seed=0, task="fine")
    failed = step(table, session, 1, "raise")
    assert code(failed) == "environment_error"
    assert failed.error.message == "ZeroDivisionError: \ufffd by zero"
    assert "in _step" in caplog.text and session in caplog.text
    assert "\ufffd" not in caplog.text, "a message may quote an action"
    assert step(table, session, 1, "raise") is failed
    assert code(step(table, session, 2)) == "episode_over"
    assert code(reset(table, session, task="fine")) is None
    assert step(table, session, 1, "hello").observation == "You said hello"


def test_a_world_that_fails_to_start_is_an_error_of_the_environment():
    table = table_of(Trouble)
    (session,) = opened(table)
    failed = reset(table, session, task="broken")
    assert failed.error.message == "RuntimeError: the world did not start"
    assert code(step(table, session, 1)) == "episode_over"


def test_a_world_that_cannot_be_made_fails_the_table_at_once():
    with pytest.raises(ValueError, match="no such luck"):
        table_of(Unmakeable)


def test_the_limit_of_sessions_is_kept_and_closing_makes_room():
    table = table_of(max_sessions=2)
    replies = table.create([CreateRequest()] * 3)
    assert [code(reply) for reply in replies] == [None, None, "too_many_sessions"]
    table.close([SessionRequest(replies[0].session)])
    assert code(table.create([CreateRequest()])[0]) is None


def test_the_card_tells_the_limit_of_the_whole_server():
    assert table_of(max_sessions=7).card().max_sessions == 7
    assert table_of(max_sessions=4, server_sessions=8).card().max_sessions == 8


def test_closing_twice_is_harmless():
    table = table_of()
    (session,) = opened(table)
    assert [r.closed for r in table.close([SessionRequest(session)] * 2)] == [True, False]
    assert code(step(table, session, 1)) == "unknown_session"


def test_a_session_of_another_environment_cannot_be_opened_here():
    table = table_of()
    replies = table.create([CreateRequest("tests/World-v0"), CreateRequest("other")])
    assert [code(reply) for reply in replies] == [None, "bad_request"]


def test_idle_sessions_end_and_busy_ones_stay():
    clock = Clock()
    table = table_of(ttl_s=10, clock=clock)
    idle, busy = opened(table, 2)
    clock.now += 9
    reset(table, busy, seed=0)
    clock.now += 2
    assert table.reap() == 1 and len(table) == 1 and table.figures().reaped == 1
    assert code(reset(table, idle)) == "unknown_session"
    assert code(step(table, busy, 1)) is None


def test_an_expired_session_is_gone_even_before_anybody_reaped_it():
    clock = Clock()
    table = table_of(ttl_s=10, clock=clock)
    (session,) = opened(table)
    clock.now += 10
    assert code(reset(table, session)) == "unknown_session"
    assert len(table) == 0


def test_reaping_looks_at_expired_sessions_only():
    class CountingClock(Clock):
        calls = 0

        def __call__(self) -> float:
            self.calls += 1
            return self.now

    clock = CountingClock()
    table = table_of(ttl_s=10, clock=clock)
    opened(table, 500)
    before = clock.calls
    assert table.reap() == 0
    assert clock.calls == before + 1


def test_a_full_table_ends_the_session_that_was_idle_longest():
    clock = Clock()
    table = table_of(max_sessions=3, clock=clock)
    oldest, old, busy = opened(table, 3)
    reset(table, oldest, seed=0)
    clock.now += 299
    reset(table, old, seed=0), reset(table, busy, seed=0)
    # Nobody was idle for five minutes.
    assert code(table.create([CreateRequest()])[0]) == "too_many_sessions"
    clock.now += 1
    assert code(table.create([CreateRequest()])[0]) is None
    assert code(reset(table, oldest)) == "unknown_session"
    assert code(step(table, old, 1)) is code(step(table, busy, 1)) is None
    assert (len(table), table.figures().reaped) == (3, 1)


def test_a_full_table_leaves_a_client_that_lives_its_sessions():
    clock = Clock()
    table = table_of(max_sessions=2, clock=clock)
    running, ended = opened(table, 2)
    reset(table, running, seed=0, task="5"), reset(table, ended, seed=0, task="5")
    assert step(table, ended, 1, "5").terminated
    for _ in range(31):
        table.renew([RenewRequest(running, 40.0), RenewRequest(ended, 40.0)])
        clock.now += 10
        table.reap()
    full = table.create([CreateRequest()])[0].error
    assert full.code == "too_many_sessions" and "--max-sessions" in full.message
    assert step(table, running, 1, "5").reward == 1.0
    assert code(reset(table, ended, seed=1)) is None


def test_sessions_are_ended_a_few_at_a_time_where_others_wait():
    clock = Clock()
    table = table_of(Trouble, ttl_s=10, clock=clock)
    opened(table, 3)
    clock.now += 11
    assert [table.reap(1) for _ in range(4)] == [1, 1, 1, 0]


def test_environments_are_closed_when_their_sessions_end():
    clock = Clock()
    table = table_of(Trouble, ttl_s=10, clock=clock)
    before = Trouble.closed
    first, _, _ = opened(table, 3)
    table.close([SessionRequest(first)])
    assert Trouble.closed == before + 1
    clock.now += 11
    table.reap()
    assert Trouble.closed == before + 3
    opened(table)
    table.shutdown()
    assert Trouble.closed == before + 4


def test_the_expert_answers_for_the_next_turn():
    table = table_of()
    (session,) = opened(table)
    ask = [SessionRequest(session)]
    assert code(table.expert(ask)[0]) == "episode_over"
    reset(table, session, seed=0, task="5")
    assert table.expert(ask)[0].action == table.expert(ask)[0].action == "5"
    assert code(table.expert([SessionRequest("nobody")])[0]) == "unknown_session"


def test_an_environment_without_an_expert_says_so():
    table = table_of(Trouble)
    (session,) = opened(table)
    reset(table, session, task="fine")
    assert code(table.expert([SessionRequest(session)])[0]) == "no_expert"


def test_a_worlds_message_is_logged_as_text_that_can_be_written(caplog):
    table = table_of(Trouble)
    (session,) = opened(table)
    reset(table, session, task="fine")
    table.step([StepRequest(session, 1, "raise")])
    assert "ZeroDivisionError" in caplog.text
    caplog.text.encode("utf-8")


def test_actions_are_logged_only_on_request(caplog):
    caplog.set_level("DEBUG")
    for log_actions in (False, True):
        table = table_of(log_actions=log_actions)
        (session,) = opened(table)
        reset(table, session, seed=0, task="5")
        step(table, session, 1, "my private words")
        assert ("my private words" in caplog.text) is log_actions
        assert f"step session={session} turn=1" in caplog.text


@pytest.mark.parametrize("as_json", [False, True])
def test_an_action_cannot_forge_a_line_of_the_log(as_json, monkeypatch):
    root, stream = logging.getLogger(), io.StringIO()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    configure_logs(stream, logging.INFO, as_json=as_json)
    forged = "2026-01-01 00:00:00 INFO agentgym: stopped"
    table = table_of(log_actions=True)
    (session,) = opened(table)
    reset(table, session, seed=0, task="5")
    for sign in ("\n", "\r", "\x85", "\u2028", "\x1b[2K\x1b[1A", "\u202e"):
        step(table, session, 1, f"5{sign}{forged}")
        reset(table, session, seed=0, task="5")
        assert sign.strip("\n") not in stream.getvalue() or sign == "\n"
    lines = stream.getvalue().splitlines()
    assert sum("step" in line for line in lines) == 6
    assert not [line for line in lines if line.startswith(forged)]


def test_a_log_line_is_one_json_object_on_request():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.Logger("x")
    logger.addHandler(handler)
    event(logger, logging.INFO, "reaped", sessions=2, note="two words")
    logger.warning("plain %d", 3)
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["sessions"], first["note"]) == ("reaped", 2, "two words")
    assert (second["event"], second["level"]) == ("plain 3", "WARNING")


def test_available_actions_are_asked_for_and_not_part_of_every_info():
    table = table_of()
    (session,) = opened(table)
    ask = [SessionRequest(session)]
    assert code(table.actions(ask)[0]) == "episode_over"
    info = reset(table, session, seed=0, task="5").info
    assert table.actions(ask)[0].actions == list("123456789")
    assert "available_actions" not in info


def test_the_card_tells_what_is_served():
    card = table_of(version="1.2").card()
    assert (card.env, card.version, card.has_expert) == ("tests/World-v0", "1.2", True)
    assert card.splits == {"train": 6, "test": 3} and card.default_split == "train"
    assert card.observation_max_length == 1_000_000
    assert table_of(Trouble).card().has_expert is False


def test_task_lists_come_in_order_with_their_categories():
    table = table_of()
    assert table.task_list("test").tasks == ["7", "8", "9"]
    assert table.task_list("test").categories == {"9": "high"}
    with pytest.raises(UnknownSplit):
        table.task_list("dev")


@pytest.mark.parametrize("settings", [{"max_sessions": 0}, {"ttl_s": 0}, {"ttl_s": float("nan")}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(BadRequest):
        table_of(**settings)


def test_a_session_that_was_closed_before_it_was_opened_does_not_open():
    """A client that gave up closes by key; the opening may still be under way."""
    table, key = table_of(), "k" * 16
    assert [reply.closed for reply in table.close([SessionRequest(key)])] == [False]
    (reply,) = table.create([CreateRequest(key=key)])
    assert code(reply) == "bad_request" and len(table) == 0
    assert table.create([CreateRequest(key="other" + key)])[0].session
