"""Structured logs: an event's name and its fields, as text or as JSON lines.

No field holds what a policy wrote, unless the server is told to log actions.
"""

from __future__ import annotations

import json
import logging
import traceback
from typing import Any, TextIO

from agentgym_env.spaces import clean_text

_FRAMES = ("where",)
"""Fields with a traceback's frames, which are shown on lines of their own."""
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Event:
    """A message with fields; as text, `name key=value ...` with the frames of a traceback below."""

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        # Frames are ours; every other value stays on the line, whatever it contains.
        frames = [clean_text(str(v)) for k, v in self.fields.items() if k in _FRAMES]
        words = [f"{k}={_quoted(v)}" for k, v in self.fields.items() if k not in _FRAMES]
        return "\n".join([" ".join([self.name, *words]), *frames]).rstrip()


def event(logger: logging.Logger, level: int, name: str, **fields: Any) -> None:
    """Log an event with its fields."""
    logger.log(level, Event(name, fields), stacklevel=2)


def configure_logs(stream: TextIO, level: int, *, as_json: bool) -> None:
    """Send this process's logs to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # What it says of its life at INFO, the server says itself, once.
    logging.getLogger("uvicorn").setLevel(max(level, logging.WARNING))


def where(error: BaseException) -> str:
    """The type of an exception and its frames.

    Its message is left out: it may quote an action.
    """
    frames = "".join(traceback.format_tb(error.__traceback__))
    return clean_text(f"{frames}{type(error).__name__}\n")


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        message = record.msg
        told = message if isinstance(message, Event) else Event(record.getMessage(), {})
        row = {
            "time": record.created,
            "level": record.levelname,
            "logger": record.name,
            "event": told.name,
            **told.fields,
        }
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json.dumps(row, default=str)


def _quoted(value: Any) -> str:
    text = str(value)
    return text if text and text.isprintable() and " " not in text else json.dumps(text)
