"""The HTTP routes by which an OpenEnv server describes itself: description, schemas and tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import quote

import msgspec

from agentgym_env.client.transports import Call, HttpTransport
from agentgym_env.errors import EnvironmentLost

_NOT_TEXTS = frozenset({"metadata", "done", "reward"})


class OpenEnvDirectory:
    """Requests each description from the server at `address` (`ws://host:port`) once."""

    def __init__(self, address: str, token: str | None, timeout_s: float) -> None:
        web = "http" + address.removeprefix("ws")
        self._transport = HttpTransport(web, token=token, timeout_s=timeout_s)

    def description(self) -> str:
        """The server's description of the environment; may be empty."""
        told = self._get("/metadata")
        text = told.get("description") if isinstance(told, dict) else None
        return text if isinstance(text, str) else ""

    def action_field(self) -> str | None:
        """The field of an action that is its one text; None where it is not one text."""
        required = self._schema("action").get("required", [])
        texts = self._texts("action")
        wanted = [name for name in texts if name in required]
        others = [name for name in required if name not in texts and name not in _NOT_TEXTS]
        if others:
            return None
        return _only(wanted) or _only(texts)

    def observation_field(self) -> str | None:
        """The field of an observation that is its one text; None where there is more to see."""
        fields = set(self._schema("observation").get("properties", {})) - _NOT_TEXTS
        only = _only(self._texts("observation"))
        return only if len(fields) == 1 else None

    def how_to_write_actions(self) -> str:
        """The instructions for a policy whose actions are JSON objects."""
        schema = json.dumps(self._schema("action"), ensure_ascii=False)
        return f"Write each action as one JSON object. Its JSON schema is:\n{schema}"

    def tools(self) -> list[dict[str, Any]]:
        """The tools of a server whose actions are calls of them, as chat templates show them."""
        if "tool_name" not in self._schema("action").get("properties", {}):
            return []
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        answer = self._post("/mcp", asked)
        result = answer.get("result") if isinstance(answer, dict) else None
        listed = result.get("tools") if isinstance(result, dict) else None
        return [
            {
                "name": tool["name"],
                "description": tool.get("description") or "",
                # Its versions spell this field in two ways.
                "parameters": tool.get("inputSchema") or tool.get("input_schema") or {},
            }
            for tool in listed or []
        ]

    def places(self) -> dict[str, tuple[str, int]]:
        """Split and index of each task of the task API, by its id; empty without a task API."""
        names = self._get("/list_environments")
        if not isinstance(names, list) or not names:
            return {}
        base = f"/{quote(str(names[0]), safe='')}"
        splits = self._get(f"{base}/splits")
        rows: list[tuple[str, int, Any]] = []
        for split in splits if isinstance(splits, list) else []:
            name = split.get("name") if isinstance(split, dict) else None
            listed = self._post(f"{base}/tasks", {"split": name})
            tasks = listed.get("tasks", []) if isinstance(listed, dict) else []
            rows += [(str(name), index, task) for index, task in enumerate(tasks)]
        ids = [row.get("id") if isinstance(row, dict) else None for _, _, row in rows]
        if all(isinstance(task, str) for task in ids) and len(set(ids)) == len(ids):
            return {str(task): row[:2] for task, row in zip(ids, rows, strict=True)}
        return {f"{split}/{index}": (split, index) for split, index, _ in rows}

    def _texts(self, kind: str) -> list[str]:
        fields = self._schema(kind).get("properties", {})
        return [
            name
            for name, schema in fields.items()
            if name not in _NOT_TEXTS and isinstance(schema, dict) and _is_text(schema)
        ]

    def _schema(self, kind: str) -> dict[str, Any]:
        schema = self._schemas.get(kind)
        return schema if isinstance(schema, dict) else {}

    @cached_property
    def _schemas(self) -> Mapping[str, Any]:
        told = self._get("/schema")
        if not isinstance(told, dict):
            raise EnvironmentLost(
                f"{self._transport.address}/schema does not answer like an OpenEnv server; check "
                "the address",
                "protocol",
            )
        return told

    def _get(self, path: str) -> Any:
        return self._read(Call(path))

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._read(Call(path, msgspec.json.encode(body)))

    def _read(self, call: Call) -> Any:
        """The answer as JSON, or None: older servers do not have every route."""
        answer = self._transport.send(call)
        if answer.status != 200:
            return None
        try:
            return msgspec.json.decode(answer.body)
        except msgspec.DecodeError:
            return None


def _is_text(schema: Mapping[str, Any]) -> bool:
    """Whether a field takes any text: no choice among a few, no format."""
    return schema.get("type") == "string" and not {"enum", "const", "format"} & set(schema)


def _only(names: list[str]) -> str | None:
    return names[0] if len(names) == 1 else None
