"""Makes a world from its spec: facts, passages, questions."""

from __future__ import annotations

from agentgym_servers.generated_world.draws import Draws
from agentgym_servers.generated_world.history import HALVES, unfold
from agentgym_servers.generated_world.proof import OneSearch
from agentgym_servers.generated_world.prose import Writer
from agentgym_servers.generated_world.questions import Asker
from agentgym_servers.generated_world.solver import solver
from agentgym_servers.generated_world.spec import WorldSpec
from agentgym_servers.generated_world.world import World
from agentgym_servers.retrieval.passages import Passage


def generate(spec: WorldSpec) -> World:
    """The world of a spec: the same on every machine, and in every process."""
    facts = unfold(spec)
    writer = Writer(facts, Draws("prose", spec.seed))
    order = Draws("order", spec.seed).shuffled(list(facts.entities.values()))
    ids = {entity.name: f"{place:06}" for place, entity in enumerate(order)}
    passages: list[Passage] = [writer.write(ids[entity.name], entity) for entity in order]
    search = OneSearch(passages)
    in_test = spec.questions // 10
    sizes = {"train": spec.questions - in_test, "test": in_test}
    questions = {}
    for split, half in HALVES.items():
        draws = Draws("questions", spec.seed, split)
        asker = Asker(facts, ids, search, draws, half, spec.paraphrase)
        questions[split] = asker.ask(split, sizes[split], spec.hops)
    return World(str(spec), passages, questions, solver)
