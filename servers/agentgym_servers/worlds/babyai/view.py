"""What the agent of a BabyAI level sees, and how it gets to what it sees.

The view is the 7 x 7 cells that minigrid shows: the agent is at column 3 of the last row and
looks up. It is read from the world's own grid instead of minigrid's rendered observation, which
costs several times as much; tests/servers/test_babyai.py compares the two.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

SIZE: Final = 7
_HOME: Final = (SIZE // 2, SIZE - 1)
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(6)
"""minigrid's low-level actions."""

# Directions in the view: up, right, down, left.
_STEPS: Final = ((0, -1), (1, 0), (0, 1), (-1, 0))
_WORLD_STEPS: Final = ((1, 0), (0, 1), (-1, 0), (0, -1))

# A pose is a number, 4 * (7 * column + row) + direction, for the sake of the search's speed.
_START: Final = 4 * (SIZE * _HOME[0] + _HOME[1])
_POSES: Final = 4 * SIZE * SIZE


def _pose_ahead(pose: int) -> int:
    """The pose one cell ahead, or -1 out of view."""
    cell, direction = divmod(pose, 4)
    column, row = cell // SIZE + _STEPS[direction][0], cell % SIZE + _STEPS[direction][1]
    inside = 0 <= column < SIZE and 0 <= row < SIZE
    return 4 * (SIZE * column + row) + direction if inside else -1


_TURNED: Final = [(p - p % 4 + (p - 1) % 4, p - p % 4 + (p + 1) % 4) for p in range(_POSES)]
"""The poses after a turn to the left and to the right."""
_AHEAD: Final = [_pose_ahead(pose) for pose in range(_POSES)]


@dataclass(frozen=True, slots=True)
class Seen:
    """An object in view."""

    kind: str
    """`key`, `ball`, `box` or `door`."""
    color: str
    state: str
    """Of a door: `open`, `closed` or `locked`."""
    number: int
    """Counts the objects in view that share a name, the nearest first."""
    ahead: int
    right: int
    """Cells to the right; negative to the left."""

    @property
    def name(self) -> str:
        """How it is called in actions: `red ball 1`, `grey closed door 2`."""
        return f"{self.color} {self.state}{' ' * bool(self.state)}{self.kind} {self.number}"

    @property
    def is_in_front(self) -> bool:
        """Whether the agent faces it from the next cell."""
        return self.ahead == 1 and self.right == 0


class View:
    """One look: the objects, what is ahead, and the ways through what is seen."""

    def __init__(self, world: Any) -> None:
        cells = _cells(world)
        visible = _visible(cells)
        self.objects = _objects(cells, visible)
        """What is seen, the nearest first."""
        self.front: Any = cells[_HOME[0]][_HOME[1] - 1]
        """What is in the next cell: a minigrid object, None where it is free."""
        self.blocked_ahead = _first_ahead(cells, visible)
        """(what, cells away) of the first thing straight ahead that one cannot walk through."""
        self._cells = cells
        self._visible = visible
        self._ways: Ways | None = None

    def where(self, kinds: Collection[str]) -> set[tuple[int, int]]:
        """The (right, ahead) of what is seen of some kinds, walls included."""
        return {
            (column - _HOME[0], _HOME[1] - row)
            for column in range(SIZE)
            for row in range(SIZE)
            if self._visible[column][row]
            and getattr(self._cells[column][row], "type", None) in kinds
            and (column, row) != _HOME
        }

    def way_to(self, ahead: int, right: int) -> list[int] | None:
        """The fewest turns and steps that bring the agent to face a cell from beside it."""
        if self._ways is None:
            self._ways = _explore(self._cells, self._visible)
        before, distance = self._ways
        column, row = _HOME[0] + right, _HOME[1] - ahead
        best, fewest = -1, _POSES
        for direction, (dx, dy) in enumerate(_STEPS):
            if not (0 <= column - dx < SIZE and 0 <= row - dy < SIZE):
                continue
            pose = 4 * (SIZE * (column - dx) + row - dy) + direction
            if 0 <= distance[pose] < fewest:
                best, fewest = pose, distance[pose]
        return _way_back(before, best) if best >= 0 else None


def _cells(world: Any) -> list[list[Any]]:
    """cells[column][row] of the view, in minigrid's objects; beyond the grid there is wall."""
    x, y = world.agent_pos
    fx, fy = _WORLD_STEPS[world.agent_dir]
    rx, ry = -fy, fx
    grid, width, height = world.grid.grid, world.grid.width, world.grid.height
    columns = []
    for side in range(-_HOME[0], _HOME[0] + 1):
        # From the far row to the agent's own.
        cx, cy = x + fx * _HOME[1] + rx * side, y + fy * _HOME[1] + ry * side
        cells = []
        for _ in range(SIZE):
            inside = 0 <= cx < width and 0 <= cy < height
            cells.append(grid[cy * width + cx] if inside else _BEYOND)
            cx -= fx
            cy -= fy
        columns.append(cells)
    return columns


class _Beyond:
    """What lies beyond the grid."""

    type = "wall"

    def see_behind(self) -> bool:
        return False

    def can_overlap(self) -> bool:
        return False


_BEYOND: Final = _Beyond()


def _visible(cells: Sequence[Sequence[Any]]) -> list[list[bool]]:
    """visible[column][row]: light spreads sideways and up, as minigrid has it."""
    visible = [[False] * SIZE for _ in range(SIZE)]
    visible[_HOME[0]][_HOME[1]] = True
    for row in range(SIZE - 1, -1, -1):
        for columns, towards in ((range(SIZE - 1), 1), (range(SIZE - 1, 0, -1), -1)):
            for column in columns:
                cell = cells[column][row]
                if not visible[column][row] or (cell is not None and not cell.see_behind()):
                    continue
                visible[column + towards][row] = True
                if row > 0:
                    visible[column + towards][row - 1] = True
                    visible[column][row - 1] = True
    return visible


def _objects(cells: Sequence[Sequence[Any]], visible: Sequence[Sequence[bool]]) -> list[Seen]:
    found = [
        (_HOME[1] - row, column - _HOME[0], cells[column][row])
        for row in range(SIZE)
        for column in range(SIZE)
        if visible[column][row]
        and cells[column][row] is not None
        and cells[column][row].type in ("key", "ball", "box", "door")
        and (column, row) != _HOME
    ]
    # Of equally near ones the farthest ahead comes first, then from left to right.
    found.sort(key=lambda item: item[0] + abs(item[1]))
    counts: dict[tuple[str, str, str], int] = {}
    objects = []
    for ahead, right, cell in found:
        state = ""
        if cell.type == "door":
            state = "open" if cell.is_open else "locked" if cell.is_locked else "closed"
        key = (cell.type, cell.color, state)
        counts[key] = counts.get(key, 0) + 1
        objects.append(Seen(cell.type, cell.color, state, counts[key], ahead, right))
    return objects


def _first_ahead(
    cells: Sequence[Sequence[Any]], visible: Sequence[Sequence[bool]]
) -> tuple[str, int] | None:
    column = _HOME[0]
    for ahead in range(1, SIZE):
        row = _HOME[1] - ahead
        if not visible[column][row]:
            return None
        cell = cells[column][row]
        if cell is not None and not cell.can_overlap():
            return cell.type, ahead
    return None


Ways = tuple[list[int], list[int]]
"""For each pose the one it was reached from first, and its distance in actions, -1 if never."""


def _explore(cells: Sequence[Sequence[Any]], visible: Sequence[Sequence[bool]]) -> Ways:
    """Every pose that can be reached through what is seen."""
    free = [
        visible[c][r] and (cells[c][r] is None or cells[c][r].can_overlap())
        for c in range(SIZE)
        for r in range(SIZE)
    ]
    before, distance = [-1] * _POSES, [-1] * _POSES
    distance[_START] = 0
    waiting = [_START]
    for pose in waiting:
        further = distance[pose] + 1
        left, right = _TURNED[pose]
        if distance[left] < 0:
            before[left], distance[left] = pose, further
            waiting.append(left)
        if distance[right] < 0:
            before[right], distance[right] = pose, further
            waiting.append(right)
        ahead = _AHEAD[pose]
        if ahead >= 0 and distance[ahead] < 0 and free[ahead >> 2]:
            before[ahead], distance[ahead] = pose, further
            waiting.append(ahead)
    return before, distance


def _way_back(before: Sequence[int], pose: int) -> list[int]:
    way: list[int] = []
    while (earlier := before[pose]) >= 0:
        left, right = _TURNED[earlier]
        way.append(LEFT if pose == left else RIGHT if pose == right else FORWARD)
        pose = earlier
    return way[::-1]
