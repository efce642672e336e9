"""Tables in narrow terminals: a name is broken over lines, and never cut."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console
from rich.table import Table

from agentgym_env.printable import UncutTable
from agentgym_env.registry import registered
from agentgym_train.evaluation.tables import Grid
from agentgym_train.runs.summary import _iterations_table
from commands import agentgym

WIDTHS = (40, 80)
LONG = "hf:runs/textcraft-with-a-long-name/checkpoints/checkpoint-1234"


def columns_of(output: str) -> list[str]:
    """The text of each column of the tables, with the lines of its cells joined."""
    rows = [re.split(r"[│┃|]", line) for line in output.splitlines() if re.search(r"[│┃]", line)]
    width = max(map(len, rows))
    return ["".join(row[i].strip() for row in rows if len(row) > i) for i in range(width)]


def shown(table, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
def test_every_environment_id_is_in_the_list(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    output = agentgym("envs").out
    ids = columns_of(output)[1]
    assert [entry.env_id for entry in registered() if entry.env_id not in ids
            and entry.env_id.startswith("agentgym/")] == []  # fmt: skip
    assert "…" not in output


@pytest.mark.parametrize("width", WIDTHS)
def test_every_model_name_is_in_the_list(monkeypatch, tmp_path, width):
    monkeypatch.setenv("COLUMNS", str(width))
    folder = tmp_path / "a-rather-long-name-of-a-folder" / "of[red]a:fire:model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    output = agentgym("models", "--folder", str(tmp_path)).out
    assert str(folder) in columns_of(output)[1]
    assert "…" not in output


@pytest.mark.parametrize("width", WIDTHS)
def test_labels_and_numbers_of_an_evaluation_are_complete(width):
    header = ["", "success", "pass@4", "turns", "episodes"]
    rows = [[LONG, "0.45 (0.40-0.50)", "0.60", "12.3", "4000"]]
    output = shown(Grid("title", header, rows).as_table(), width)
    letters = re.sub(r"\s", "", output)
    assert "…" not in output
    first = "".join(re.match(r"\s?(\S*)", line)[1] for line in output.splitlines()[3:])
    assert LONG in first.replace("─", "")
    for digit in "0.45(0.40-0.50)0.6012.34000":
        assert digit in letters


@pytest.mark.parametrize("width", WIDTHS)
def test_environments_are_complete_in_the_table_of_agent_evol(width):
    base = {"agentgym/TextCraft-v0": 0.25, "agentgym/BabyAI-v0": 0.25}
    columns = columns_of(shown(_iterations_table([*base], base, []), width))
    for env in base:
        assert any(env in column for column in columns), columns


def test_the_columns_beside_the_first_are_shared_out_in_order():
    header = ["name", *"abcdefghij"]
    output = shown(Grid("", header, [["n", *"0123456789"]]).as_table(), 20)
    rows = [line.split() for line in output.splitlines() if line.split()[:1] in (["name"], ["n"])]
    assert rows == [
        ["name", *"abcd"], ["n", *"0123"], ["name", *"efgh"], ["n", *"4567"],
        ["name", *"ij"], ["n", *"89"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["starter:textcraft/warm_policy - m", "x" * 68])
def test_a_name_that_fits_stays_on_one_line(name):
    header = ["", "difference (95 %)", "p", "p (Holm)", "better", "worse"]
    numbers = ["-0.500 (-1.000 to +0.000)", "0.5000", "1.0000", "0", "2"]
    grid = shown(Grid("Paired", header, [[name, *numbers]]).as_table(), 80)
    table = Table("name", "kind", "what", "MB", "from")
    table.add_row(name, "whole", "Qwen3ForCausalLM", "3.9", "package")
    boxes = shown(UncutTable(table), 80)
    for output in (grid, boxes):
        assert name in output and "…" not in output
        assert max(map(len, output.splitlines())) <= 80
    for number in ("0.5000", "1.0000", "better", "worse", "3.9", "whole"):
        assert re.search(rf"\s{number}\s", grid + boxes)
    letters = columns_of(boxes)
    assert any("Qwen3ForCausalLM" in column for column in letters)


def test_an_evaluation_of_three_policies_by_category_stays_one_table():
    header = ["", "episodes", *["success some-policy", "turns"] * 3]
    rows = [["depth 1", "4", *["0.50 (0.00-1.00)", "3.5"] * 3]]
    output = shown(Grid("By category", header, rows).as_table(), 80)
    assert output.count("depth 1") == 1 and output.count("(0.00-1.00)") == 3


def test_plain_strings_in_a_table_are_no_markup():
    table = Table("[b]head")
    table.add_row("runs/[red]x :fire:\x1b[2J")
    output = shown(UncutTable(table), 80)
    assert "[b]head" in output and r"runs/[red]x :fire:\x1b[2J" in output
