"""One example's token weights as a stand-alone picture, for places that show no HTML."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from stages.report.canvas import drawable
from stages.report.palette import HEAT, INK, MUTED, PAPER
from stages.report.token_weights import Example, Piece

_WIDTH = 700.0
_MARGIN = 14.0
_FONT = 9.0
_ADVANCE = 0.602 * _FONT
"""Width of a character of the fixed-width font, in points."""
_LINE = 17.0
_MAX_PIECES = 160


def token_picture(example: Example) -> Figure:
    """Draw the example, one block per method; call inside `canvas.drawing()`."""
    blocks = [_placed(row.pieces[:_MAX_PIECES]) for row in example.rows]
    height = 44 + sum(24 + _LINE * (1 + max(line for _, _, line in b)) for b in blocks)
    figure = Figure(figsize=(_WIDTH / 72, height / 72), dpi=72)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, _WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    heading = f"{drawable(example.task, 50)} · label {drawable(example.label, 30)}"
    axes.text(_MARGIN, 18, heading, fontsize=11, fontweight="bold", va="center")
    legend = [Piece(f"{2.0 ** (i - 2):g}×", False, 2.0 ** (i - 2)) for i in range(1, len(HEAT))]
    left = _WIDTH - _MARGIN - sum((len(p.text) + 1) * _ADVANCE for p in legend) + _ADVANCE
    axes.text(left - 8, 18, "weight / uniform", fontsize=9.5, color=MUTED, va="center", ha="right")
    for piece in legend:
        _draw(axes, piece, left, 11.0)
        left += (len(piece.text) + 1) * _ADVANCE
    top = 34.0
    for row, block in zip(example.rows, blocks, strict=True):
        axes.text(_MARGIN, top + 8, drawable(row.method), fontsize=9.5, color=INK, va="center")
        said = f"says {drawable(row.prediction, 30)}"
        axes.text(
            _WIDTH - _MARGIN, top + 8, said, fontsize=9.5, color=MUTED, va="center", ha="right"
        )
        top += 20
        for piece, x, line in block:
            _draw(axes, piece, x, top + line * _LINE)
        top += _LINE * (1 + max(line for _, _, line in block)) + 4
    return figure


def _placed(pieces: tuple[Piece, ...]) -> list[tuple[Piece, float, int]]:
    """Left edge and line of every piece, wrapped at the right margin."""
    placed: list[tuple[Piece, float, int]] = []
    x, line = _MARGIN, 0
    for piece in pieces:
        width = len(_text(piece)) * _ADVANCE
        gap = 0.0 if piece.glued or x == _MARGIN else _ADVANCE * 0.9
        if x + gap + width > _WIDTH - _MARGIN and x > _MARGIN:
            x, line, gap = _MARGIN, line + 1, 0.0
        placed.append((piece, x + gap, line))
        x += gap + width
    return placed


def _text(piece: Piece) -> str:
    return drawable(piece.text, 60)


def _draw(axes: Axes, piece: Piece, x: float, y: float) -> None:
    text = _text(piece)
    width = len(text) * _ADVANCE
    axes.add_patch(
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
