"""Export of matplotlib figures: as PNG for files, and as SVG in the page's colours for the page.

Only Figure and canvas objects are used, not pyplot, as several threads may write reports.
"""

import io
import re
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.typing import RcKeyType

from permafrost.stages.report.legend import Legends
from permafrost.stages.report.palette import CUSTOM_PROPERTIES, GRID, INK, MUTED, PAPER

_STYLE: dict[RcKeyType, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "font.size": 10.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 3.0,
    "ytick.major.size": 0.0,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    "svg.fonttype": "none",  # text stays text: the page's font, selectable, sharp
}


# matplotlib's settings are global to the process; two reports at once would see each other's.
_settings = threading.Lock()


@contextmanager
def drawing() -> Generator[None]:
    """Our figure style, for one thread at a time; draw and export inside."""
    with _settings, mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def png(figure: Figure, dpi: int = 160) -> bytes:
    """The figure on a white background. Equal figures give equal bytes."""
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


@dataclass(frozen=True)
class InlineSvg:
    """An `<svg>` element to be put into a page, after a list that is its legend."""

    markup: Markup


def svg(
    figure: Figure,
    prefix: str,
    description: str,
    titles: Mapping[str, Sequence[str]] | None = None,
) -> InlineSvg:
    """The picture as an element that follows the page's colours and font.

    Args:
        figure: what to draw.
        prefix: prefix of every id, so that several pictures can share a page.
        description: alternative text, for screen readers.
        titles: tooltips, one per marker, by the `gid` of the line that has the markers.
    """
    FigureCanvasSVG(figure)
    legends, buffer = Legends(figure), io.BytesIO()
    figure.savefig(buffer, format="svg", facecolor="none", metadata=dict.fromkeys(_METADATA))
    root = ElementTree.fromstring(buffer.getvalue())
    legends.find(root)
    for gid, texts in (titles or {}).items():
        _entitle(root, gid, texts)
    ids: dict[str, str] = {}
    for element in root.iter():
        _drop_boilerplate(element)
        element.tag = _local(element.tag)
        attributes = {_local(k): v for k, v in element.attrib.items()}
        if "id" in attributes:
            # Renumbered: matplotlib salts some of its ids with a random number.
            attributes["id"] = ids.setdefault(attributes["id"], f"{prefix}-{len(ids)}")
        element.attrib = {k: _themed(v) if k == "style" else v for k, v in attributes.items()}
    for element in root.iter():
        for name in ("href", "clip-path"):
            if name in element.attrib:
                element.attrib[name] = re.sub(
                    r"#([\w-]+)", lambda m: f"#{ids[m[1]]}", element.attrib[name]
                )
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib.update({"role": "img", "aria-label": description})
    keys = legends.take_out(root)
    return InlineSvg(keys + Markup(ElementTree.tostring(root, encoding="unicode").strip()))


_METADATA = ("Creator", "Date", "Format", "Type")


def _entitle(root: ElementTree.Element, gid: str, texts: Sequence[str]) -> None:
    """Give every marker of a line its tooltip; their common style moves to the group, to save space."""
    group = next(element for element in root.iter() if element.get("id") == gid)
    marks = [element for element in group.iter() if _local(element.tag) == "use"]
    for mark, text in zip(marks, texts, strict=True):
        group.set("style", mark.attrib.pop("style", ""))
        for name in ("x", "y"):
            mark.set(name, f"{float(mark.attrib[name]):.1f}")
        ElementTree.SubElement(mark, "title").text = text


def _drop_boilerplate(element: ElementTree.Element) -> None:
    for child in list(element):
        if _local(child.tag) in ("metadata", "style"):
            element.remove(child)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _themed(style: str) -> str:
    return re.sub(r"#[0-9a-f]{6}", lambda m: CUSTOM_PROPERTIES.get(m[0], m[0]), style)


def drawable(text: str, n_chars: int = 40) -> str:
    """A user's text as one line that matplotlib can draw: shortened, without formulas or missing glyphs."""
    line = shortened(" ".join(text.split()), n_chars)
    known = get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap()
    return "".join(c if ord(c) in known else "□" for c in line).replace("$", r"\$")


def shortened(text: str, n_chars: int) -> str:
    """At most `n_chars` characters, the last one an ellipsis if something was cut."""
    return text if len(text) <= n_chars else text[: n_chars - 1].rstrip() + "…"
