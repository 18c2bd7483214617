"""One example's token weights as a stand-alone picture, for places that show no HTML."""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.palette import HEAT, INK, MUTED, PAPER
from permafrost.stages.report.token_weights import Example, Passage, Piece, WeightRow

_WIDTH = 700.0
_MARGIN = 14.0
_FONT = 9.0
_ADVANCE = 0.602 * _FONT
"""Width of a character of the fixed-width font, in points."""
_LINE = 17.0


@dataclass(frozen=True)
class _Line:
    """Pieces with their left edges, or a remark."""

    pieces: tuple[tuple[Piece, float], ...]
    remark: str = ""


def token_picture(example: Example) -> Figure:
    """Draw the example, one block per method; call inside `canvas.drawing()`.

    Of a long text the tokens that a page shows at once are drawn; how many more there are is said.
    """
    blocks = [_lines(row) for row in example.rows]
    height = 44 + sum(24 + _LINE * len(lines) for lines in blocks)
    figure = Figure(figsize=(_WIDTH / 72, height / 72), dpi=72)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, _WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    label = "" if example.label is None else f" · label {drawable(example.label, 30)}"
    heading = f"{drawable(example.task, 50)}{label}"
    axes.text(_MARGIN, 18, heading, fontsize=11, fontweight="bold", va="center")
    legend = [Piece(f"{2.0 ** (i - 2):g}×", False, 2.0 ** (i - 2)) for i in range(1, len(HEAT))]
    left = _WIDTH - _MARGIN - sum((len(p.text) + 1) * _ADVANCE for p in legend) + _ADVANCE
    axes.text(left - 8, 18, "weight / uniform", fontsize=9.5, color=MUTED, va="center", ha="right")
    for piece in legend:
        _draw(axes, piece, left, 11.0)
        left += (len(piece.text) + 1) * _ADVANCE
    top = 34.0
    for row, lines in zip(example.rows, blocks, strict=True):
        axes.text(_MARGIN, top + 8, drawable(row.method), fontsize=9.5, color=INK, va="center")
        said = "" if row.prediction is None else f"says {drawable(row.prediction, 30)}"
        axes.text(
            _WIDTH - _MARGIN, top + 8, said, fontsize=9.5, color=MUTED, va="center", ha="right"
        )
        top += 20
        for line in lines:
            for piece, x in line.pieces:
                _draw(axes, piece, x, top)
            if line.remark:
                axes.text(_MARGIN, top + 9.6, line.remark, fontsize=_FONT, color=MUTED)
            top += _LINE
        top += 4
    return figure


def _lines(row: WeightRow) -> list[_Line]:
    """All texts of a row, each beginning a line of its own."""
    return [line for passage in row.passages for line in _wrapped(passage)]


def _wrapped(passage: Passage) -> list[_Line]:
    """A text's pieces, wrapped at the right margin, and what is left out."""
    lines: list[list[tuple[Piece, float]]] = [[]]
    x = _MARGIN
    for piece in passage.shown:
        width = len(_text(piece)) * _ADVANCE
        gap = 0.0 if piece.glued or not lines[-1] else _ADVANCE * 0.9
        if x + gap + width > _WIDTH - _MARGIN and lines[-1]:
            lines.append([])
            x, gap = _MARGIN, 0.0
        lines[-1].append((piece, x + gap))
        x += gap + width
    found = [_Line(tuple(line)) for line in lines]
    n_more = passage.n_tokens - len(passage.shown)
    if n_more:
        remark = f"… {n_more} more tokens, holding {passage.hidden_share:.0%} of the weight"
        found.append(_Line((), remark))
    return found


def _text(piece: Piece) -> str:
    return drawable(piece.text, 60)


def _draw(axes: Axes, piece: Piece, x: float, y: float) -> None:
    text = _text(piece)
    width = len(text) * _ADVANCE
    # Not add_patch, which measures each patch for limits that are set here.
    axes.add_artist(
        FancyBboxPatch(
            (x, y),
            width,
            _LINE - 4,
            boxstyle="round,pad=0,rounding_size=1.5",
            facecolor=HEAT[piece.level],
            edgecolor="none",
        )
    )
    colour = {0: MUTED, len(HEAT) - 1: PAPER}.get(piece.level, INK)
    axes.text(
        x, y + 9.6, text, fontsize=_FONT, family="DejaVu Sans Mono", color=colour, va="baseline"
    )
