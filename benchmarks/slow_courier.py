"""The courier of examples/learning, whose steps take their time."""

from __future__ import annotations

import time

from courier import Courier


class SlowCourier(Courier):
    """Each step takes `delay_s` seconds without computing, as a page that loads does."""

    def __init__(self, render_mode: str | None = None, *, delay_s: float = 0.0) -> None:
        super().__init__(render_mode)
        self.delay_s = delay_s

    def _step(self, action: str) -> tuple[str, float, bool]:
        time.sleep(self.delay_s)
        return super()._step(action)
