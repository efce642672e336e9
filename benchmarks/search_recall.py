"""How well BM25 finds what questions need: by the question itself, and by the expert's searches.

    python benchmarks/search_recall.py --corpus synthetic:0 --split test

Recall@3 is the share of a question's supporting passages among the three best of a search, or of
all the expert's searches together. No score is hidden: a question that the expert fails is counted.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import mean

import bm25s

from agentgym_servers.worlds.search.answers import normal
from agentgym_servers.worlds.search.corpora import Question, Solving, open_world, solve
from agentgym_servers.worlds.search.retrieval.passages import Passage

TOP = 3
Search = Callable[[str], list[Passage]]


def searcher(passages: Sequence[Passage]) -> Search:
    """A search by bm25s with its defaults; every query brings the three best passages."""
    index = bm25s.BM25()
    texts = [passage.contents for passage in passages]
    index.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)

    def search(query: str) -> list[Passage]:
        tokens = bm25s.tokenize([query], stopwords="en", show_progress=False)
        places, _ = index.retrieve(tokens, k=TOP, show_progress=False)
        return [passages[place] for place in places[0]]

    return search


def play(expert: Solving, search: Search) -> tuple[str, list[list[Passage]]]:
    """The expert's answer, and what each of its searches brought."""
    brought: list[list[Passage]] = []
    try:
        query = next(expert)
        while True:
            brought.append(search(query))
            query = expert.send(brought[-1])
    except StopIteration as end:
        return end.value, brought


def right(question: Question, answer: str) -> bool:
    """Whether an answer matches one of the question's exactly, after normalisation."""
    return normal(answer) in map(normal, question.answers)


def recall(question: Question, passages: Sequence[Passage]) -> float:
    """The share of what a question needs that is among the passages."""
    return len({p.id for p in passages} & set(question.support)) / len(question.support)


def one_search_recall(questions: Sequence[Question], search: Search) -> dict[int, float]:
    """Hops -> mean recall@3 of a search for the question as it stands."""
    found = defaultdict(list)
    for question in questions:
        found[question.hops].append(recall(question, search(question.text)))
    return {hops: mean(found[hops]) for hops in sorted(found)}


def guess(
    questions: Sequence[Question], seen: Sequence[Question], by: str
) -> dict[str, list[bool]]:
    """Whether the answer most frequent among those seen is right, group by group.

    `by` is `template`, or `relation` for the one that is asked for last.
    """
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for question in seen:
        answers[_group(question, by)][normal(question.answers[0])] += 1
    hits = defaultdict(list)
    for question in questions:
        group = _group(question, by)
        best = answers[group].most_common(1)
        hits[group].append(bool(best) and right(question, best[0][0]))
    return hits


def _group(question: Question, by: str) -> str:
    return question.template if by == "template" else question.template.partition("(")[0]


def main() -> None:
    """Print a table by category, and what guessing comes to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpus", default="synthetic:0")
    parser.add_argument("--split", default="test")
    options = parser.parse_args()
    world = open_world(options.corpus)
    questions, search = world.questions[options.split], searcher(world.passages)
    rows = defaultdict(list)
    for question in questions:
        answer, brought = play(solve(question), search)
        one = recall(question, search(question.text))
        every = recall(question, [p for passages in brought for p in passages])
        row = (one, every, float(len(brought)), float(right(question, answer)))
        rows[question.hops, question.category].append(row)
        rows[question.hops, f"all of {question.hops} hops"].append(row)
    print(
        f"{world.name}: {len(world.passages)} passages, {len(questions)} {options.split} questions"
    )
    print("category         questions  recall@3 question  recall@3 expert  searches  expert EM")
    for (_, category), values in sorted(rows.items()):
        one, every, searches, solved = map(mean, zip(*values, strict=True))
        print(
            f"{category:<16} {len(values):>9}  {one:>17.3f}  {every:>15.3f}"
            f"  {searches:>8.2f}  {solved:>9.3f}"
        )
    for by in ("template", "relation") if options.split != "train" else ():
        hits = guess(questions, world.questions["train"], by)
        every_hit = [hit for group in hits.values() for hit in group]
        worst = sorted(hits.items(), key=lambda group: (-sum(group[1]), group[0]))[:5]
        print(f"guessing the most frequent train answer by {by}: {mean(every_hit):.3f}")
        for group, values in worst:
            if any(values):
                print(f"  {group}: {sum(values)} of {len(values)}")


if __name__ == "__main__":
    main()
