"""The wire's messages as bytes."""

import msgspec
import numpy as np
import pytest

from agentgym_env.wire import (
    JSON,
    MSGPACK,
    STATUS,
    ErrorCode,
    ResetRequest,
    StepReply,
    StepRequest,
    WireError,
    decode,
    encode,
)


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
def test_a_message_survives_the_journey(content_type):
    reply = StepReply("s", 2, "héllo 🙂", 0.5, True, False, {"score": 1.0, "actions": ["a"]})
    assert decode(encode([reply], content_type), list[StepReply], content_type) == [reply]


def test_a_good_reply_has_no_error_field_and_a_failed_one_does():
    assert b"error" not in encode(StepReply("s", 1))
    failed = StepReply("s", 1, error=WireError("stale_turn", "no", "s"))
    assert decode(encode(failed), StepReply).error.code == "stale_turn"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'[{"session": "s"}]',
        b'[{"session": "s", "turn": 1, "action": null}]',
        b'[{"session": "s", "turn": NaN, "action": "a"}]',
        b'[{"session": "s", "turn": 1.5, "action": "a"}]',
        b'[{"session": "s", "turn": 1, "action": "a", "sesion": 1}]',
        b'[{"session": "s", "turn": 1, "action": "\\ud800"}]',
    ],
)
def test_what_is_not_a_request_is_refused(body):
    with pytest.raises(msgspec.DecodeError):
        decode(body, list[StepRequest])


def test_numpy_values_travel_as_plain_ones():
    info = {"a": np.int64(3), "b": np.float32(0.5), "c": np.arange(2), "d": np.str_("x")}
    assert decode(encode(info), dict) == {"a": 3, "b": 0.5, "c": [0, 1], "d": "x"}


def test_what_cannot_travel_is_named():
    with pytest.raises(NotImplementedError, match="object cannot be sent"):
        encode({"a": object()})


def test_every_error_code_has_a_status():
    assert set(ErrorCode.__args__) == set(STATUS)


def test_optional_fields_may_be_left_out():
    assert decode(b'{"session": "s"}', ResetRequest) == ResetRequest("s")
