"""What the host counts, as a page for Prometheus."""

from __future__ import annotations

from collections import Counter

from agentgym_servers.routes import ROUTES
from agentgym_servers.sessions import SessionTable

_KNOWN = frozenset((route.method, route.path) for route in ROUTES)


class Metrics:
    """Requests and items by route, errors by code."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self._items: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def count_request(self, method: str, path: str) -> None:
        """One call came in. Unknown paths share a name, or a scan would fill the memory."""
        self._requests[path if (method, path) in _KNOWN else "unknown"] += 1

    def count_items(self, path: str, items: int) -> None:
        """A batch was answered."""
        self._items[path] += items

    def count_error(self, code: str) -> None:
        """A call or an item failed."""
        self._errors[code] += 1

    def page(self, table: SessionTable) -> str:
        """Every figure in Prometheus's text format."""
        lines: list[str] = []

        def add(name: str, kind: str, text: str, samples: dict[str, int]) -> None:
            lines.append(f"# HELP agentgym_{name} {text}")
            lines.append(f"# TYPE agentgym_{name} {kind}")
            lines.extend(f"agentgym_{name}{label} {value}" for label, value in samples.items())

        requests = {f'{{route="{path}"}}': n for path, n in sorted(self._requests.items())}
        items = {f'{{route="{path}"}}': n for path, n in sorted(self._items.items())}
        errors = {f'{{code="{code}"}}': n for code, n in sorted(self._errors.items())}
        add("sessions", "gauge", "Sessions open now.", {"": len(table)})
        add("sessions_created_total", "counter", "Sessions opened.", {"": table.created})
        add("sessions_reaped_total", "counter", "Sessions ended as idle.", {"": table.reaped})
        add("steps_total", "counter", "Steps the environments took.", {"": table.steps})
        add("requests_total", "counter", "Calls, by route.", requests)
        add("items_total", "counter", "Items answered, by route.", items)
        add("errors_total", "counter", "Failed calls and items, by code.", errors)
        return "\n".join(lines) + "\n"
