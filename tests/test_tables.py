"""The tables of figures follow from the records in results/."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("docs_tables", ROOT / "docs" / "tables.py")
tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tables)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project of one page with one table."""
    for name in ("docs", "results"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "results" / "algorithms.json", tmp_path / "results")
    page = "# Page\n\n<!-- table: algorithms -->\n<!-- end -->\n\nMore.\n"
    (tmp_path / "docs" / "page.md").write_text(page)
    return tmp_path


def test_the_pages_have_the_figures_of_the_records():
    assert tables.main(["--check"]) == 0


def test_writing_makes_the_check_pass(root):
    assert tables.main(["--check"], root) == 1
    assert tables.main([], root) == 0
    assert tables.main(["--check"], root) == 0
    page = (root / "docs" / "page.md").read_text()
    assert "0.480 ± 0.036" in page and page.endswith("<!-- end -->\n\nMore.\n")


def test_a_changed_figure_fails_the_check(root, capsys):
    tables.main([], root)
    page = root / "docs" / "page.md"
    page.write_text(page.read_text().replace("0.480 ±", "0.580 ±"))
    assert tables.main(["--check"], root) == 1
    assert "docs/page.md differs from its records" in capsys.readouterr().err


def test_a_table_without_a_record_fails_the_check(root, capsys):
    (root / "results" / "algorithms.json").unlink()
    assert tables.main(["--check"], root) == 1
    assert "algorithms.json is missing" in capsys.readouterr().err


def test_a_table_that_mixes_versions_of_sampling_fails_the_check(root, capsys):
    path = root / "results" / "algorithms.json"
    record = json.loads(path.read_text())
    record["rows"][0]["sampling"] = record["sampling"] + 1
    path.write_text(json.dumps(record))
    assert tables.main(["--check"], root) == 1
    assert "mixes the sampling versions [1, 2]" in capsys.readouterr().err


def test_intervals_are_those_of_textbooks():
    # Student's t with 4 degrees of freedom; Wilson's interval of 0 in 10 ends at z^2 / (10 + z^2).
    assert tables.half_width([1, 2, 3, 4, 5]) == pytest.approx(2.776 * (2.5 / 5) ** 0.5)
    assert tables.wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
