"""An environment in one file: `agentgym play author_an_environment:Hanoi` in this folder."""

from collections.abc import Iterator
from itertools import product

from agentgym_env import TaskSet, TextEnv

STARTS = ["".join(s) for n in (3, 4) for s in product("ABC", repeat=n) if {*s} != {"C"}]
"""The peg of each disc, from the largest one."""


class Hanoi(TextEnv):
    """Bring every disc to peg C, never a larger one onto a smaller one. Reward: 1 when done."""

    instruction = "Bring all discs to peg C, no disc onto a smaller one. Answer like: move A to B"
    tasks = TaskSet({"train": sorted({*STARTS} - {*STARTS[::4]}), "test": STARTS[::4]})

    def _reset(self, task: str) -> str:
        self.pegs = {peg: [len(task) - n for n, p in enumerate(task) if p == peg] for peg in "ABC"}
        return str(self.pegs)

    def _step(self, action: str) -> tuple[str, float, bool]:
        if action not in self.available_actions():
            return f"That is not possible: {self.pegs}", 0.0, False
        self.pegs[action[-1]].append(self.pegs[action[5]].pop())
        done = not self.pegs["A"] and not self.pegs["B"]
        return str(self.pegs), float(done), done

    def available_actions(self) -> list[str]:
        """Every move that the rules allow."""
        tops = {peg: discs[-1] if discs else 99 for peg, discs in self.pegs.items()}
        return [f"move {a} to {b}" for a in "ABC" for b in "ABC" if tops[a] < tops[b]]

    def expert(self, disc: int | None = None, target: str = "C") -> Iterator[str]:
        """Bring a disc and all smaller ones to a peg, from wherever they lie."""
        disc = sum(map(len, self.pegs.values())) if disc is None else disc
        peg = next((peg for peg, discs in self.pegs.items() if disc in discs), target)
        if peg != target:
            yield from self.expert(disc - 1, next(iter({*"ABC"} - {peg, target})))
            yield f"move {peg} to {target}"
        if disc > 1:
            yield from self.expert(disc - 1, target)
