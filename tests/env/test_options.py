"""Options of the command line that commands share, and their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from agentgym_env.cli.options import choice_option, json_object, with_option_groups
from agentgym_env.errors import BadRequest, ConfigError


def test_an_object_is_read():
    assert json_object("--env-kwargs", '{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "--env-kwargs is not valid JSON"), ("[1]", "--env-kwargs must be a JSON object")],
)
def test_what_is_no_object_is_refused_by_the_options_name(text, message):
    with pytest.raises(BadRequest, match=message):
        json_object("--env-kwargs", text)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """A group of options."""

    model: Annotated[str, typer.Option(help="The model.")]
    temperature: Annotated[float, typer.Option(min=0.0, help="The temperature.")] = 1.0


def invoke(command, *words: str):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [*words])


@with_option_groups
def sample(sampling: Sampling, count: Annotated[int, typer.Argument()] = 1) -> None:
    """Sample something."""
    typer.echo(f"{count} {sampling}")


def test_a_field_of_an_option_group_is_an_option_with_its_help_default_and_limits():
    done = invoke(sample, "--model", "m", "3")
    assert done.output == f"3 {Sampling(model='m', temperature=1.0)}\n"
    assert (
        f"{Sampling(model='m', temperature=0.5)}"
        in invoke(sample, "--model", "m", "--temperature", "0.5").output
    )
    assert invoke(sample).exit_code == 2
    assert invoke(sample, "--model", "m", "--temperature", "-1").exit_code == 2
    text = invoke(sample, "--help").output
    assert "Sample something." in text and "The temperature." in text


def test_an_invalid_choice_is_rejected_in_one_line_with_a_suggestion():
    def pick(size: Annotated[str, choice_option(["small", "large"], "The size")] = "small") -> None:
        typer.echo(size)

    assert invoke(pick).output == "small\n"
    assert invoke(pick, "--size", "large").output == "large\n"
    error = invoke(pick, "--size", "larg").exception
    assert isinstance(error, ConfigError)
    assert str(error) == ("--size 'larg' is invalid; did you mean large? Choose from small, large")
    assert str(invoke(pick, "--size", "x").exception) == (
        "--size 'x' is invalid; choose from small, large"
    )
