"""A figure's legends as a list of the page: its text keeps its size where the figure shrinks, and it wraps.

A picture that stands alone keeps its legends. Lengths are points; in the page a point of a key is a pixel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.legend import Legend

_SPACE = 2.0
"""Around the drawing of a key."""


@dataclass(frozen=True)
class _Key:
    name: str
    element: ElementTree.Element
    box: tuple[float, float, float, float]
    """Left, top, width and height of its drawing."""


class Legends:
    """The legends of a figure that is about to be exported as SVG."""

    def __init__(self, figure: Figure) -> None:
        self._figure = figure
        self._keys: list[_Key] = []
        self._elements: list[ElementTree.Element] = []
        for number, legend in enumerate(figure.legends):
            legend.set_gid(f"legend-{number}")
            for place, handle in enumerate(legend.legend_handles):
                if handle is not None:
                    handle.set_gid(f"legend-{number}-{place}")

    def find(self, root: ElementTree.Element) -> None:
        """Remember what was drawn of them, by ids that nobody has changed yet."""
        by_id = {e.attrib["id"]: e for e in root.iter() if "id" in e.attrib}
        for number, legend in enumerate(self._figure.legends):
            self._elements.append(by_id[f"legend-{number}"])
            names = [text.get_text().replace(r"\$", "$") for text in legend.get_texts()]
            for place, (name, box) in enumerate(zip(names, self._boxes(legend), strict=True)):
                element = by_id[f"legend-{number}-{place}"]
                self._keys.append(_Key(name, element, box))

    def _boxes(self, legend: Legend) -> list[tuple[float, float, float, float]]:
        height = self._figure.bbox.height
        drawn = [h.get_window_extent() for h in legend.legend_handles if h is not None]
        return [
            (
                box.x0 - _SPACE,
                height - box.y1 - _SPACE,
                box.width + 2 * _SPACE,
                box.height + 2 * _SPACE,
            )
            for box in drawn
        ]

    def take_out(self, root: ElementTree.Element) -> Markup:
        """Cut the legends and their space off the top of the picture; returns them as a list, or nothing if
        there are none."""
        if not self._elements:
            return Markup("")
        for parent in list(root.iter()):
            for element in [child for child in parent if child in self._elements]:
                parent.remove(element)
        left, _, width, height = map(float, root.attrib["viewBox"].split())
        lowest = min(legend.legendPatch.get_window_extent().y0 for legend in self._figure.legends)
        top = height - lowest
        root.attrib["viewBox"] = f"{left:g} {top:g} {width:g} {lowest:g}"
        return Markup('<ul class="keys">{}</ul>').format(_items(self._keys))


def _items(keys: Sequence[_Key]) -> Markup:
    return Markup("").join(Markup("<li>{}{}</li>").format(_drawing(key), key.name) for key in keys)


def _drawing(key: _Key) -> Markup:
    left, top, width, height = key.box
    drawing = ElementTree.Element(
        "svg",
        {
            "viewBox": f"{left:.1f} {top:.1f} {width:.1f} {height:.1f}",
            "width": f"{width:.0f}",
            "height": f"{height:.0f}",
            "aria-hidden": "true",
        },
    )
    drawing.append(key.element)
    return Markup(ElementTree.tostring(drawing, encoding="unicode"))
