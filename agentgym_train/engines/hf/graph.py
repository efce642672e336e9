"""Decode steps of one shape, which a GPU replays as a CUDA graph.

A decode step of a small model launches hundreds of short kernels, and launching them takes longer
than running them. A graph is launched at once. Its shapes and addresses are fixed: every step runs
all rows and columns of the batch's buffer, and the mask hides those that are not in use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

logger = logging.getLogger(__name__)

_CHECKED: Final = 3
"""Steps after a capture that are also computed without the graph, and compared."""


class _StaticLayer(DynamicLayer):
    """One layer of a buffer; a step writes into the column that a tensor names."""

    is_compileable = False

    def __init__(self, buffer: Tensor, column: Tensor) -> None:
        """`buffer` is (2, rows, H, capacity, D): keys and values; `column` is (1,)."""
        super().__init__()
        self._buffer, self._column = buffer, column
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """Write one column and return all: (rows, H, capacity, D) each."""
        keys, values = self._buffer
        keys.index_copy_(2, self._column, key_states.to(keys.dtype))
        values.index_copy_(2, self._column, value_states.to(values.dtype))
        return keys, values

    def get_seq_length(self) -> int:
        """Positions are given, so that no length is needed."""
        return 0


class StaticStep:
    """Decode steps in one buffer of keys and values."""

    def __init__(self, model: Any, buffer: Tensor, visible: Callable[[Tensor], Tensor]) -> None:
        """`buffer` is (layers, 2, rows, H, capacity, D); `visible` makes the attention's mask."""
        self.buffer = buffer
        self._model, self._visible = model, visible
        rows, capacity = buffer.shape[2], buffer.shape[4]
        whole: dict[str, Any] = {"dtype": torch.long, "device": buffer.device}
        self._ids = torch.zeros(rows, 1, **whole)
        self._positions = torch.zeros(rows, 1, **whole)
        self._column = torch.zeros(1, **whole)
        self._mask = torch.zeros(rows, capacity, dtype=torch.bool, device=buffer.device)
        self._cache = Cache(layers=[_StaticLayer(layer, self._column) for layer in buffer])
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor | None = None
        self._left_to_check = _CHECKED

    def __call__(self, ids: Tensor, real: Tensor, column: int) -> Tensor:
        """The logits after one token per row, (rows, V).

        `ids` is (size,), for the first rows; `real` is (rows, capacity), true at the tokens of
        each row, those of this step in `column` included. Raises `GraphFailed`.
        """
        size = len(ids)
        self._ids.zero_()
        self._ids[:size, 0] = ids
        self._positions[:, 0] = (real.sum(1) - 1).clamp_(min=0)
        self._column.fill_(column)
        self._mask.copy_(real)
        self._mask[:, column] = True  # a fully masked row would be NaN
        if self.buffer.device.type != "cuda":
            return self._forward()
        with torch.cuda.device(self.buffer.device):  # the current one belongs to a thread
            return self._replay(size)

    def _replay(self, size: int) -> Tensor:
        if self._graph is None:
            self._capture()
        assert self._graph is not None and self._logits is not None
        self._graph.replay()
        found = self._logits.clone()
        if self._left_to_check:
            self._left_to_check -= 1
            plain = self._forward()
            if not torch.allclose(found[:size], plain[:size], rtol=1e-2, atol=0.1):
                raise GraphFailed("its logits differ from those without it")
        return found

    def _forward(self) -> Tensor:
        output = self._model(
            input_ids=self._ids,
            attention_mask=self._visible(self._mask[:, None, None]),
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _capture(self) -> None:
        own, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(own)
        try:
            with torch.cuda.stream(stream):  # libraries allocate at their first calls
                self._forward()
            own.wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._logits = self._forward()
        except torch.OutOfMemoryError:
            raise  # the engine then samples fewer turns at once
        except RuntimeError as error:
            raise GraphFailed(str(error).splitlines()[0][:300]) from error
        finally:
            # A failed capture leaves its stream as the current one.
            torch.cuda.set_stream(own)
        self._graph = graph


class GraphFailed(RuntimeError):
    """A decode step could not be captured, or its replay differs."""


class StaticSteps:
    """The decode steps of an engine, captured again for each new buffer, until one fails."""

    def __init__(self) -> None:
        self._step: StaticStep | None = None
        self._works = True

    def decode(
        self,
        model: Any,
        buffer: Tensor,
        visible: Callable[[Tensor], Tensor],
        ids: Tensor,
        real: Tensor,
        column: int,
    ) -> Tensor | None:
        """The logits as of `StaticStep`, or None if graphs do not work here."""
        if not self._works:
            return None
        self.release(buffer)
        if self._step is None:
            self._step = StaticStep(model, buffer, visible)
        try:
            return self._step(ids, real, column)
        except GraphFailed as error:
            self._works, self._step = False, None
            logger.warning("the hf engine samples without CUDA graphs: %s", error)
            return None

    def release(self, buffer: Tensor | None = None) -> None:
        """Drop the graph unless it is of this buffer; it does not survive its weights."""
        if self._step is not None and self._step.buffer is not buffer:
            self._step = None
