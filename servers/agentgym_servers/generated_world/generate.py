"""Makes a world from its spec: facts, passages, questions."""

from __future__ import annotations

from agentgym_servers.generated_world.draws import Draws
from agentgym_servers.generated_world.facts import Entity
from agentgym_servers.generated_world.grammar import Words
from agentgym_servers.generated_world.history import HALVES, unfold
from agentgym_servers.generated_world.proof import OneSearch
from agentgym_servers.generated_world.prose import Writer
from agentgym_servers.generated_world.questions import Asker, Corpus
from agentgym_servers.generated_world.sampling import WEIGHTS, HalfSampler
from agentgym_servers.generated_world.schema import ARTICLED
from agentgym_servers.generated_world.solver import Solver
from agentgym_servers.generated_world.spec import WorldSpec
from agentgym_servers.generated_world.tongue import LANGUAGE
from agentgym_servers.generated_world.world import World

solver = Solver(LANGUAGE)
"""Solves the questions of every generated world; it knows how they are worded, and no fact."""


def generate(spec: WorldSpec) -> World:
    """The world of a spec: the same on every machine, and in every process."""
    facts = unfold(spec)
    writer = Writer(facts, Draws("prose", spec.seed))
    order = Draws("order", spec.seed).shuffled(list(facts.entities.values()))
    ids = {entity.name: f"{place:06}" for place, entity in enumerate(order)}
    passages = [writer.write(ids[entity.name], entity) for entity in order]
    corpus = Corpus(facts, ids, OneSearch(passages))
    in_test = spec.questions // 10
    sizes = {"train": spec.questions - in_test, "test": in_test}
    questions = {}
    for split, half in HALVES.items():
        draws = Draws("questions", spec.seed, split)

        def mention(name: str) -> str:
            return _mention(facts.entities[name])

        def choose(wordings: tuple[str, str], draws: Draws = draws) -> str:
            return wordings[draws.chance(spec.paraphrase)]

        words = Words(LANGUAGE, mention, choose)
        asker = Asker(corpus, HalfSampler(facts, draws, half), words, WEIGHTS)
        questions[split] = draws.shuffled(asker.ask(split, sizes[split], spec.hops))
    return World(str(spec), passages, questions, solver)


def _mention(entity: Entity) -> str:
    """An entity as a question names it."""
    if entity.kind == "work":
        return f"the {entity.sort} {entity.name}"
    return f"the {entity.name}" if entity.kind in ARTICLED else entity.name
