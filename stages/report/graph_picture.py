"""A drawing of a small graph with the attention in it, as an SVG element in the page's colours.

Colour and shape of a node say of which type it is; its area, and how strong its colour is, how much attention
it gets. The width of an edge is the attention on it in both directions. Lengths are points.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from markupsafe import Markup

from permafrost.stages.report.canvas import shortened
from permafrost.stages.report.graph_layout import places
from permafrost.stages.report.palette import CONTROL, CUSTOM_PROPERTIES, INK, MUTED, PAPER, SERIES
from permafrost.stages.report.subgraphs import (
    ANSWER_ENTITY,
    OTHER,
    QUERY_ENTITY,
    QUERY_NODE,
    GraphEdge,
    GraphNode,
    Subgraph,
)

WIDTH = 640.0
TYPE_NAMES = {
    QUERY_NODE: "query node",
    QUERY_ENTITY: "query entity",
    ANSWER_ENTITY: "answer entity",
    OTHER: "other node",
}
"""In the order of a legend."""
_COLOURS = {QUERY_NODE: INK, QUERY_ENTITY: SERIES[0], ANSWER_ENTITY: SERIES[1], OTHER: CONTROL}
_LEAST, _MOST = 5.5, 19.0
"""Radii of nodes without attention, and with the most."""
_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FONT, _SMALL = 12.0, 9.5
_ADVANCE = 0.57
"""Width of a character in units of the font size."""
_LABEL_CHARS, _RELATION_CHARS = 24, 26
_BEND = 0.07
"""How far the control point of a curve lies beside the middle of its ends, in units of their distance."""
_ALONG = (0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73)
"""Where on an edge its name may stand."""

_Points = Float64[np.ndarray, "n 2"]
_Point = Float64[np.ndarray, " 2"]


def picture(graph: Subgraph, description: str) -> Markup:
    """The drawing; `description` is its alternative text."""
    drawn = _Drawing.of(graph)
    edges = [drawn.edge(at) for at in range(len(graph.edges))]
    nodes = [drawn.node(at) for at in range(len(graph.nodes))]
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" class="subgraph" viewBox="0 0 {} {}" role="img" '
        'aria-label="{}">{}</svg>'
    ).format(_n(WIDTH), _n(drawn.height), description, Markup("").join([*edges, *nodes]))


def picture_description(graph: Subgraph) -> str:
    """Alternative text: how much is shown, and where most of the attention is."""
    most = sorted(graph.nodes, key=lambda n: -n.attention)[:3]
    named = ", ".join(f"{n.label} ({n.attention:.2g} times the mean)" for n in most)
    return f"Graph of {graph.n_nodes} nodes, {len(graph.nodes)} shown; most attention: {named}."


def icon(kind: int) -> Markup:
    """The shape of a type of node, for a legend."""
    return Markup('<svg class="icon" viewBox="-9 -9 18 18" aria-hidden="true">{}</svg>').format(
        _shape(kind, 6.5, 0.8)
    )


def standalone(markup: str) -> str:
    """A drawing as a file of its own, in light colours on white. Characters that XML does not have, which a
    label may, stand as a replacement character."""
    light = {name: colour for colour, name in CUSTOM_PROPERTIES.items()}
    plain = re.sub(r"var\(--[\w-]+\)", lambda m: light[m[0]], _NOT_IN_XML.sub("\ufffd", markup))
    head, _, body = plain.partition(">")
    ground = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    return f'{head} font-family="sans-serif">{ground}{body}\n'


@dataclass(frozen=True)
class _Curve:
    """A quadratic curve between the rims of two nodes."""

    start: _Point
    control: _Point
    end: _Point

    def at(self, t: float) -> _Point:
        return (1 - t) ** 2 * self.start + 2 * t * (1 - t) * self.control + t * t * self.end

    @property
    def path(self) -> str:
        (a, b), (c, d), (e, f) = self.start, self.control, self.end
        return f"M{_n(a)} {_n(b)}Q{_n(c)} {_n(d)} {_n(e)} {_n(f)}"


@dataclass(frozen=True)
class _Drawing:
    graph: Subgraph
    height: float
    radii: Float64[np.ndarray, " n"]
    points: _Points
    curves: tuple[_Curve, ...]
    names: tuple[tuple[_Point, bool], ...]
    """Where the name of each edge stands, and whether there is room for it."""

    @classmethod
    def of(cls, graph: Subgraph) -> "_Drawing":
        radii = np.array([_radius(node, graph.nodes) for node in graph.nodes])
        height = float(np.clip(120 + 17 * len(graph.nodes), 150, 470))
        halves = [_width(_label(node), _FONT) / 2 for node in graph.nodes]
        sides = np.maximum(radii * 1.2, halves) + 2
        boxes = np.stack([sides, radii * 1.2 + 2, sides, radii + 17], axis=1)
        points = places([edge.ends for edge in graph.edges], boxes, WIDTH, height)
        curves = tuple(_curve(points, radii, edge) for edge in graph.edges)
        return cls(graph, height, radii, points, curves, _names(graph, points, boxes, curves))

    def node(self, at: int) -> Markup:
        node, radius = self.graph.nodes[at], float(self.radii[at])
        x, y = self.points[at]
        said = f"{node.label} · {TYPE_NAMES[node.type]} · {node.attention:.2g}× the mean attention"
        strength = 0.2 + 0.8 * _strength(node, self.graph.nodes)
        return Markup(
            '<g class="node" transform="translate({} {})"><title>{}</title>{}{}</g>'
        ).format(
            _n(x),
            _n(y),
            said,
            _shape(node.type, radius, strength),
            _text(0, radius + 12.5, _label(node), _FONT, is_strong=node.type != OTHER),
        )

    def edge(self, at: int) -> Markup:
        edge, curve = self.graph.edges[at], self.curves[at]
        share = sum(edge.attention) / max(sum(e.attention) for e in self.graph.edges)
        width = (0.7 if edge.is_of_query else 0.9) + (1.5 if edge.is_of_query else 2.6) * share
        colour = _colour(INK if edge.is_of_query else MUTED)
        dots = Markup(' stroke-dasharray="0.1 {}" stroke-linecap="round"').format(_n(2 * width + 2))
        heads = Markup("")
        if edge.forward and not edge.is_of_query:
            heads += _head(curve.end, curve.end - curve.control, width)
        if edge.backward and not edge.is_of_query:
            heads += _head(curve.start, curve.start - curve.control, width)
        (x, y), has_room = self.names[at]
        name = _text(x, y + 3, _name(edge), _SMALL, colour=MUTED)
        return Markup(
            '<g class="edge"><title>{}</title><path d="{}" fill="none" stroke="transparent" '
            'stroke-width="12"/><g opacity="{}"><path d="{}" fill="none" stroke="{}" '
            'stroke-width="{}"{}/>{}</g>{}</g>'
        ).format(
            self._said(edge),
            curve.path,
            _n(0.35 + 0.6 * share),
            curve.path,
            colour,
            _n(width),
            dots if edge.is_of_query else "",
            heads,
            name if has_room else Markup('<g class="away" opacity="0">{}</g>').format(name),
        )

    def _said(self, edge: GraphEdge) -> str:
        first, second = (self.graph.nodes[end].label for end in edge.ends)
        lines = [f"{first} — {name} → {second}" for name in edge.forward]
        lines += [f"{second} — {name} → {first}" for name in edge.backward]
        there, back = edge.attention
        lines.append(f"attention {there:.2f} from {first}, {back:.2f} from {second}")
        return "\n".join(lines)


def _curve(points: _Points, radii: Float64[np.ndarray, " n"], edge: GraphEdge) -> _Curve:
    a, b = (points[end] for end in edge.ends)
    length = max(float(np.linalg.norm(b - a)), 1e-9)
    control = (a + b) / 2 + _BEND * np.array([a[1] - b[1], b[0] - a[0]])
    ends: list[_Point] = []
    for point, node in zip((a, b), edge.ends, strict=True):
        ahead = (control - point) / max(float(np.linalg.norm(control - point)), 1e-9)
        ends.append(point + ahead * min(float(radii[node]) * 1.08 + 2, length / 3))
    return _Curve(ends[0], control, ends[1])


def _names(
    graph: Subgraph,
    points: _Points,
    boxes: Float64[np.ndarray, "n 4"],
    curves: Sequence[_Curve],
) -> tuple[tuple[_Point, bool], ...]:
    """The names of edges with much attention come first; one that would cover another, or a node, has no
    room. What joins the query node has none either, as its name says nothing."""
    taken = [(*(p - box[:2]), *(p + box[2:])) for p, box in zip(points, boxes, strict=True)]
    order = sorted(range(len(curves)), key=lambda i: -sum(graph.edges[i].attention))
    found = [(curve.at(0.5), False) for curve in curves]
    for i in order:
        if graph.edges[i].is_of_query:
            continue
        half = _width(_name(graph.edges[i]), _SMALL) / 2 + 1
        for t in _ALONG:
            x, y = curves[i].at(t)
            box = (x - half, y - 6, x + half, y + 6)
            if x < half or x > WIDTH - half or any(_overlap(box, other) for other in taken):
                continue
            taken.append(box)
            found[i] = (np.array([x, y]), True)
            break
    return tuple(found)


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    across = one[0] < other[2] and other[0] < one[2]
    return bool(across and one[1] < other[3] and other[1] < one[3])


def _radius(node: GraphNode, nodes: Sequence[GraphNode]) -> float:
    return max(_LEAST, _MOST * float(np.sqrt(_strength(node, nodes))))


def _strength(node: GraphNode, nodes: Sequence[GraphNode]) -> float:
    """1 for the node with the most attention."""
    most = max(n.attention for n in nodes)
    return max(node.attention, 0.0) / most if most > 0 else 0.0


def _shape(kind: int, radius: float, opacity: float) -> Markup:
    if kind == QUERY_NODE:
        side = radius * 0.92
        form = Markup('rect x="{0}" y="{0}" width="{1}" height="{1}" rx="{2}"').format(
            _n(-side), _n(2 * side), _n(side / 3)
        )
    elif kind == ANSWER_ENTITY:
        r = radius * 1.2
        form = Markup('path d="M0 {0}L{1} 0L0 {1}L{0} 0Z"').format(_n(-r), _n(r))
    else:
        form = Markup('circle r="{}"').format(_n(radius))
    # Paper below, so that no edge shines through.
    return Markup(
        '<{0} fill="{1}"/><{0} fill="{2}" fill-opacity="{3}" stroke="{2}" stroke-width="1.5" '
        'stroke-linejoin="round"{4}/>'
    ).format(
        form,
        _colour(PAPER),
        _colour(_COLOURS[kind]),
        _n(opacity),
        Markup(' stroke-dasharray="3 2"') if kind == OTHER else "",
    )


def _head(tip: _Point, along: _Point, width: float) -> Markup:
    ahead = along / max(float(np.linalg.norm(along)), 1e-9)
    aside = np.array([-ahead[1], ahead[0]])
    size = 4.2 + 1.1 * width
    back = tip - size * ahead
    corners = (tip + ahead, back + 0.45 * size * aside, back - 0.45 * size * aside)
    return Markup('<path d="M{} {}L{} {}L{} {}Z" fill="{}"/>').format(
        *(_n(v) for corner in corners for v in corner), _colour(MUTED)
    )


def _text(
    x: float, y: float, text: str, size: float, *, is_strong: bool = False, colour: str = INK
) -> Markup:
    # Its outline in paper first, as an element of its own: not all programs know `paint-order`.
    outline = Markup(' stroke="{0}" stroke-width="3" stroke-linejoin="round"').format(
        _colour(PAPER)
    )
    return Markup("").join(
        Markup(
            '<text x="{}" y="{}" font-size="{}" text-anchor="middle" fill="{}"{}{}>{}</text>'
        ).format(
            _n(x),
            _n(y),
            _n(size),
            _colour(fill),
            Markup(' font-weight="600"') if is_strong else "",
            around,
            text,
        )
        for fill, around in ((PAPER, outline), (colour, ""))
    )


def _label(node: GraphNode) -> str:
    return shortened(" ".join(node.label.split()), _LABEL_CHARS)


def _name(edge: GraphEdge) -> str:
    return shortened(", ".join(dict.fromkeys((*edge.forward, *edge.backward))), _RELATION_CHARS)


def _width(text: str, size: float) -> float:
    return _ADVANCE * size * len(text)


def _colour(colour: str) -> str:
    return CUSTOM_PROPERTIES[colour]


def _n(value: float) -> str:
    """A number with at most two decimal places."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
