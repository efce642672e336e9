"""Sphinx settings of the documentation site; `make docs` builds it."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from tools.reference_pages import (  # noqa: E402
    index_entries,
    link_outside,
    list_pages,
    make_accessible,
    with_code_blocks,
    write_pages,
)

project = "agentgym-sdk"
author = "the authors of agentgym-sdk"
copyright = "the authors of agentgym-sdk, Apache-2.0"
release = version = installed_version("agentgym-sdk")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
# A type such as Connection exists in several packages.
suppress_warnings = ["ref.python"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
# Docstrings use single backticks for code.
default_role = "code"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = "agentgym-sdk"
html_static_path: list[str] = []
html_show_sphinx = False
copybutton_exclude = ".linenos, .gp, .go"

write_pages(HERE)


def setup(app):  # type: ignore[no-untyped-def]
    """Connect what the pages need."""
    app.connect("source-read", link_outside)
    app.connect("source-read", index_entries)
    app.connect("autodoc-process-docstring", with_code_blocks)
    app.connect("build-finished", list_pages)
    # After the theme's own, which makes the tree of pages.
    app.connect("html-page-context", make_accessible, priority=900)
