"""Make the start policy of the study: TextCraft's warm policy, taught BabyAI and Search as well.

    python examples/several_worlds/warm_start.py --out examples/several_worlds/policy

TextCraft's warm policy already copies and crafts. Its tokenizer gets further merges for the words
of the other worlds, which leaves the old tokens and their embeddings as they are. Then the policy
is fine-tuned on demonstrations of all three worlds, of training tasks only. It also learns aimless
moves in TextCraft and BabyAI, so that RL has something to remove.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import PreTrainedTokenizerFast

from agentgym_env.trajectory import Trajectory, Turn
from agentgym_servers.worlds.babyai.env import BabyAI
from agentgym_servers.worlds.search.env import Search
from agentgym_train.config.learn import SFTConfig
from agentgym_train.config.policy import PolicyConfig
from agentgym_train.data.tokenize import EpisodeTokenizer, training_row
from agentgym_train.models.loading import load_policy, quiet_libraries
from agentgym_train.training.sft import imitate

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from examples import textcraft_warm_start as textcraft
from examples.learning import warm_start as learning
from examples.several_worlds.corpus import new_names, renamed, short_names
from examples.several_worlds.setting import HERE, env_kwargs

TEXTCRAFT_POLICY = HERE.parent / "train" / "textcraft" / "warm_policy"
ROWS_PER_STEP = 16
MAX_ROW_TOKENS = 900
VOCABULARY = 2048
SHARES = {"search": 0.48, "babyai": 0.3, "textcraft": 0.22}
"""Of the rows."""
CARELESS = {"babyai": 0.3, "textcraft": 0.3}
"""Share of the demonstrated moves that are aimless."""
TEXTS = 3000
"""Demonstrations of each world from which the tokenizer learns its words."""


def main() -> None:
    """Make demonstrations, extend the tokenizer, fit the policy, save it with its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    args = parser.parse_args()
    quiet_libraries()
    began = time.monotonic()
    model, tokenizer = load_policy(str(TEXTCRAFT_POLICY))
    words = textcraft.tokenizer_texts(
        episode for world in ("babyai", "search") for episode in demonstrations(world, TEXTS, 99)
    )
    extend(tokenizer, words, VOCABULARY)
    add_embeddings(model, len(tokenizer), args.seed)
    figures = fit(model, tokenizer, args)
    model.to(torch.bfloat16).save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    (args.out / "training_args.bin").unlink(missing_ok=True)
    figures = {
        "command": " ".join(["python", "examples/several_worlds/warm_start.py", *sys.argv[1:]]),
        "parameters": sum(p.numel() for p in model.parameters()),
        **figures,
        "seconds": round(time.monotonic() - began),
        "torch": torch.__version__.partition("+")[0],
    }
    (args.out / "warm_start.json").write_text(json.dumps(figures, indent=1) + "\n")


def fit(model: Any, tokenizer: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune the model in place on rows of all worlds; the figures of the fit."""
    rows, counts = [], {}
    for world, share in SHARES.items():
        wanted = round(args.steps * ROWS_PER_STEP * share)
        own = rows_of(tokenizer, demonstrations(world, wanted, args.seed))
        counts[world] = {"rows": len(own), "tokens": sum(len(row["input_ids"]) for row in own)}
        rows += own
    rng = random.Random(args.seed)
    rng.shuffle(rows)
    settings = SFTConfig(
        model=str(args.out),
        data=["the experts"],
        output_dir=str(args.out),
        learning_rate=args.learning_rate,
        trainer_args={"warmup_steps": 50, "adam_beta2": 0.98, "weight_decay": 0.01},
        rows_per_step=ROWS_PER_STEP,
        shuffle=False,
        seed=args.seed,
        compute_dtype="bfloat16",
    )
    metrics = imitate(model, tokenizer, textcraft.by_length(rows, ROWS_PER_STEP, rng), settings)
    return {"worlds": counts, "train_loss": round(metrics["train_loss"], 4)}


def rows_of(tokenizer: Any, episodes: Iterable[Trajectory]) -> list[dict[str, list[int]]]:
    """The rows of SFT, without those that are too long."""
    to_rows = EpisodeTokenizer(tokenizer, PolicyConfig(instruction=""))
    rows = [training_row(tokens) for episode in episodes for tokens in to_rows.rows(episode)]
    return [row for row in rows if len(row["input_ids"]) <= MAX_ROW_TOKENS]


def demonstrations(world: str, count: int, seed: int) -> Iterator[Trajectory]:
    """Episodes of training tasks of a world."""
    match world:
        case "textcraft":
            steps = -(-count // textcraft.ROWS_PER_STEP)
            stage = replace(textcraft.STAGES[-1], steps=steps, careless=CARELESS[world])
            return textcraft.demonstrations(stage, seed)
        case "babyai":
            return babyai_demonstrations(count, seed)
        case "search":
            return search_demonstrations(count, seed)
    raise ValueError(f"no world {world!r}; choose from {', '.join(SHARES)}")


def babyai_demonstrations(count: int, seed: int) -> Iterator[Trajectory]:
    """Episodes in which a share of the moves is any that is available."""
    rng = random.Random(seed)
    env = BabyAI(**env_kwargs("babyai"))
    tasks = env.tasks.split("train")
    stage = learning.Stage("wander", 0, 0.0, CARELESS["babyai"], turns=8)
    for number in range(count):
        task = tasks[int(rng.random() * len(tasks))]
        yield learning.demonstrate(env, "agentgym/BabyAI-v0", task, number, rng, stage)


def search_demonstrations(count: int, seed: int) -> Iterator[Trajectory]:
    """The expert's episodes of one search and the answer, as the passage spells it."""
    rng = random.Random(seed)
    env = Search(**env_kwargs("search"))
    tasks = env.tasks.split("train")
    stage = learning.Stage("read", 0, 0.0, careless=0.0, turns=2)
    found = 0
    while found < count:
        task = tasks[int(rng.random() * len(tasks))]
        episode = learning.demonstrate(env, "agentgym/Search-v0", task, found, rng, stage)
        shown = as_in_passage(episode) if episode.success else None
        if shown is not None:
            found += 1
            yield with_new_names(shown, rng)


def as_in_passage(episode: Trajectory) -> Trajectory | None:
    """The same episode with the answer as its passage spells it, or None if it has none.

    A space is put around the text between tags: words that follow a space are the tokens that the
    question and the passage have, so that the policy can copy them.
    """
    search, answer = episode.turns
    query = search.action.removeprefix("<search>").removesuffix("</search>")
    text = answer.action.removeprefix("<answer>").removesuffix("</answer>")
    spelled = next((form for form in forms(text) if f" {form}" in search.observation), None)
    if spelled is None:
        return None
    turns = [
        _turn(search, f"<search> {query} </search>"),
        _turn(answer, f"<answer> {spelled} </answer>"),
    ]
    return msgspec.structs.replace(episode, turns=turns)


def with_new_names(episode: Trajectory, rng: random.Random) -> Trajectory:
    """The same episode under other names, so that the policy has to copy and cannot remember."""
    texts = [episode.observation, *(turn.observation for turn in episode.turns)]
    names = new_names((word for text in texts for word in short_names(text)), rng)
    turns = [
        msgspec.structs.replace(
            _turn(turn, renamed(turn.action, names)), observation=renamed(turn.observation, names)
        )
        for turn in episode.turns
    ]
    return msgspec.structs.replace(
        episode, observation=renamed(episode.observation, names), turns=turns
    )


def forms(text: str) -> Iterator[str]:
    """The ways in which passages spell an answer: as it is, numbers by thousands, dates."""
    yield text
    if text.isdigit():
        yield f"{int(text):,}"
    match text.split():
        case [day, month, year] if day.isdigit() and year.isdigit():
            yield f"{month} {day}, {year}"
            suffix = (
                "th"
                if 11 <= int(day) <= 13
                else {"1": "st", "2": "nd", "3": "rd"}.get(day[-1], "th")
            )
            yield f"{day}{suffix} of {month} {year}"


def _turn(turn: Turn, action: str) -> Turn:
    return msgspec.structs.replace(turn, response=action, action=action)


def extend(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str], size: int) -> None:
    """Add merges of the texts' most frequent pairs of tokens, up to a vocabulary of `size`.

    The old merges come first, and no token changes its number.
    """
    backend = tokenizer.backend_tokenizer
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text))
    words = [
        [[t.value for t in backend.model.tokenize(piece)], n] for piece, n in sorted(counts.items())
    ]
    described = json.loads(backend.to_str())
    vocabulary, merges = described["model"]["vocab"], described["model"]["merges"]
    while len(vocabulary) < size:
        first, second = _commonest_pair(words)
        vocabulary[first + second] = len(vocabulary)
        merges.append([first, second])
        for word in words:
            if first in word[0]:
                word[0] = _merged(word[0], first, second)
    tokenizer._tokenizer = type(backend).from_str(json.dumps(described))


def _commonest_pair(words: Sequence[Any]) -> tuple[str, str]:
    pairs: Counter[tuple[str, str]] = Counter()
    for tokens, count in words:
        for pair in pairwise(tokens):
            pairs[pair] += count
    return max(pairs, key=lambda pair: (pairs[pair], pair))


def _merged(tokens: Sequence[str], first: str, second: str) -> list[str]:
    merged: list[str] = []
    for token in tokens:
        if token == second and merged and merged[-1] == first:
            merged[-1] = first + second
        else:
            merged.append(token)
    return merged


@torch.no_grad()
def add_embeddings(model: Any, size: int, seed: int) -> None:
    """Draw the embeddings of new tokens like those of the old ones, dimension by dimension."""
    old = model.get_input_embeddings().weight.clone()  # (V, C)
    model.resize_token_embeddings(size, mean_resizing=False)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(size - len(old), old.shape[1], generator=generator)  # (new, C)
    model.get_input_embeddings().weight[len(old) :] = drawn * old.std(0) + old.mean(0)
    model.tie_weights()


if __name__ == "__main__":
    main()
