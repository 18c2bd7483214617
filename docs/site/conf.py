"""Sphinx's settings for the site, see build.py."""

import re
from typing import Any

from sphinx.ext.napoleon import Config, GoogleDocstring

project = "Permafrost"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
highlight_language = "text"

# Docstrings are written as Markdown: what stands in `single quotes` is code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"

html_theme = "furo"
templates_path = ["templates"]
html_title = "Permafrost"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_static_path: list[str] = []


def _restructured(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """A docstring, Markdown in Google's style, as reStructuredText.

    As an extension Napoleon would take what comes before a colon in a property's first line for its type.
    """
    inside, found = False, list[str]()
    for line in lines:
        fence = re.fullmatch(r"( *)```(\w*)", line)
        if fence is None:
            found.append(f"    {line}" if inside else line)
        elif inside:
            inside = False
            found.append("")
        else:
            inside = True
            found += ["", f"{fence[1]}.. code-block:: {fence[2] or 'text'}", ""]
    lines[:] = GoogleDocstring(found, Config()).lines()


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _restructured)
