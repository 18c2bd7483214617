"""Maps of the attention of every token of a text: a row of panels for each recipe, a column for each block.

A figure is drawn inside `canvas.drawing()`. Lengths of a figure are points.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgba
from matplotlib.figure import Figure

from permafrost.stages.metrics.attention_map import AttentionMap
from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.frame import POINTS, WIDTH
from permafrost.stages.report.palette import HEAT, INK, MUTED, SERIES
from permafrost.stages.report.tokens import Token, notation_of, readable

_GAP, _LEFT, _ABOVE, _TITLE, _FOOT = 8.0, 18.0, 14.0, 15.0, 16.0
_STRETCH = 0.5
"""Power of a weight that is its shade: most are below a tenth."""


@dataclass(frozen=True)
class KeptMap:
    """The map of one curve of a probe on a task."""

    probe: str
    method: str
    task: str
    map: AttentionMap


@dataclass(frozen=True)
class MapGroup:
    """The maps of a probe on one task."""

    number: int
    """Number from 1, in order of first appearance."""
    probe: str
    task: str
    maps: tuple[KeptMap, ...]

    @property
    def figure(self) -> str:
        """Name of its picture."""
        return f"attention_map_{self.number}"

    @property
    def n_across(self) -> int:
        """Panels in the longest row."""
        return max(len(kept.map.weights) for kept in self.maps)


def map_groups(kept: Sequence[KeptMap]) -> tuple[MapGroup, ...]:
    """Maps by probe and task, in order of first appearance."""
    names = dict.fromkeys((one.probe, one.task) for one in kept)
    return tuple(
        MapGroup(i, *name, tuple(one for one in kept if (one.probe, one.task) == name))
        for i, name in enumerate(names, start=1)
    )


def words(kept: AttentionMap) -> str:
    """The text of a map, without placeholders."""
    own = [Token(t) for i, t in enumerate(kept.tokens) if i not in kept.placeholders]
    read = readable(own, notation_of(own))
    return "".join(("" if token.glued else " ") + token.text for token in read).strip()


def attention_map_description(group: MapGroup) -> str:
    """Alternative text of the figure."""
    maps = "; ".join(
        f"{kept.method}: {len(kept.map.tokens)} tokens, blocks {', '.join(map(str, kept.map.weights))}"
        for kept in group.maps
    )
    return (
        f"Maps of attention, {group.probe} on {group.task}, queries down and keys across. {maps}."
    )


def attention_map_figure(group: MapGroup) -> Figure:
    """One panel per recipe and block: rows are queries, columns keys.

    Ticks are ends of sentences (left) and placeholders (below).
    """
    side = (WIDTH - _LEFT - _GAP * (group.n_across - 1)) / group.n_across
    row = _TITLE + _ABOVE + side
    height = row * len(group.maps) + _FOOT
    figure = Figure(figsize=(WIDTH / POINTS, height / POINTS), dpi=POINTS)
    for i, kept in enumerate(group.maps):
        top = i * row
        figure.text(0, 1 - (top + 11) / height, drawable(kept.method, 40), color=INK, weight="bold")
        for j, (block, weights) in enumerate(kept.map.weights.items()):
            left = _LEFT + j * (side + _GAP)
            bottom = height - top - row
            place = (left / WIDTH, bottom / height, side / WIDTH, side / height)
            _panel(figure.add_axes(place), kept.map, block, weights)
    note = (
        "square root of the weight; a tick for each end of a sentence (left), placeholder (below)"
    )
    figure.text(0.99, 3 / height, note, fontsize=8.0, color=MUTED, ha="right")
    return figure


def _panel(axes: Axes, kept: AttentionMap, block: int, weights: np.ndarray) -> None:
    axes.imshow(
        weights,
        cmap=LinearSegmentedColormap.from_list("heat", [to_rgba(HEAT[1], 0), *HEAT[1:]]),
        norm=PowerNorm(_STRETCH, 0, 1),
        interpolation="nearest",
        aspect="auto",
    )
    axes.set_title(f"block {block}", color=MUTED, fontsize=9.0, fontweight="normal", pad=3)
    axes.set_yticks(kept.ends, [""] * len(kept.ends))
    axes.set_xticks(kept.placeholders, [""] * len(kept.placeholders))
    axes.tick_params(axis="y", length=4, color=SERIES[0])
    axes.tick_params(axis="x", length=4, color=SERIES[1])
    axes.grid(visible=False)
