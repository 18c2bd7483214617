"""The files of the page: its template, the parts of it, and the style sheet."""

import hashlib
from functools import cache
from importlib import resources

TEMPLATE, STYLE = "template.html.j2", "style.css"
PARTS = (
    "standing.html.j2",
    "clean.html.j2",
    "correlations.html.j2",
    "chosen_on_test.html.j2",
    "claims.html.j2",
    "attention_maps.html.j2",
    "maps.html.j2",
    "attention.html.j2",
    "graphs.html.j2",
    "errors.html.j2",
    "residuals.html.j2",
)


def page_digest() -> str:
    """Digest of the templates and the style sheet: the part of a report's code that is not Python."""
    content = "\0".join(asset(name) for name in (TEMPLATE, STYLE, *PARTS))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@cache
def asset(name: str) -> str:
    """The content of one of them."""
    return resources.files("permafrost.stages.report").joinpath(name).read_text(encoding="utf-8")
