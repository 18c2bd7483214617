"""Places for the nodes of a small graph: near what they are joined to, with room for their labels.

Source: stress majorisation (Gansner, Koren and North, Graph Drawing by Stress Majorization, 2004), from a
spiral, so that the same graph gets the same places. Axes: n nodes; lengths are those of the drawing.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

_STEPS, _PUSHES = 200, 400
_UNJOINED = 2.5
_GAP = 7.0
"""Least distance between the boxes of two nodes."""


def places(
    edges: Sequence[tuple[int, int]],
    boxes: Float64[np.ndarray, "n 4"],
    width: float,
    height: float,
) -> Float64[np.ndarray, "n 2"]:
    """Where each node stands.

    Args:
        edges: pairs of nodes.
        boxes: how far each node with its label reaches to the left, up, right and down.
        width: of the drawing.
        height: likewise.
    """
    n = len(boxes)
    if n == 1:
        return np.array([[width / 2, height / 2]])
    points = _stress(_distances(n, edges))
    points = _rotated(points - points.mean(0))
    extent = np.maximum(np.ptp(points, axis=0), 1e-6)
    low = boxes[:, :2].max(0)
    room = np.array([width, height]) - low - boxes[:, 2:].max(0)
    # A line has no second direction to fill.
    scale = np.where(extent < 1e-3 * extent.max(), 0.0, room / extent)
    middle = low + room / 2
    points = (points - (points.min(0) + points.max(0)) / 2) * scale + middle
    return _apart(points, boxes, width, height)


def _distances(n: int, edges: Sequence[tuple[int, int]]) -> Float64[np.ndarray, "n n"]:
    """Number of edges between two nodes; for those that nothing joins, a little more than two."""
    far = np.full((n, n), np.inf)
    np.fill_diagonal(far, 0)
    for a, b in edges:
        far[a, b] = far[b, a] = 1
    for middle in range(n):
        far = np.minimum(far, far[:, middle, None] + far[None, middle])
    return np.where(np.isfinite(far), far, _UNJOINED)


def _stress(wanted: Float64[np.ndarray, "n n"]) -> Float64[np.ndarray, "n 2"]:
    n = len(wanted)
    turn = np.arange(n) * np.pi * (3 - np.sqrt(5))
    points = np.sqrt(np.arange(n) + 0.5)[:, None] * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    weights = np.where(wanted > 0, 1 / np.maximum(wanted, 1) ** 2, 0)
    laplacian = np.diag(weights.sum(1)) - weights
    inverse = np.linalg.pinv(laplacian)
    for _ in range(_STEPS):
        now = np.linalg.norm(points[:, None] - points[None], axis=2)
        pull = weights * wanted / np.maximum(now, 1e-9)
        np.fill_diagonal(pull, 0)
        points = inverse @ ((np.diag(pull.sum(1)) - pull) @ points)
    return points


def _rotated(points: Float64[np.ndarray, "n 2"]) -> Float64[np.ndarray, "n 2"]:
    """The longest direction across, the first node at the upper left."""
    _, directions = np.linalg.eigh(points.T @ points)
    turned = points @ directions[:, ::-1]
    return turned * np.where(turned[0] > 0, -1.0, 1.0)


def _apart(
    points: Float64[np.ndarray, "n 2"],
    boxes: Float64[np.ndarray, "n 4"],
    width: float,
    height: float,
) -> Float64[np.ndarray, "n 2"]:
    """Push apart boxes that overlap, each time in the direction in which they overlap least."""
    points = points.copy()
    low, high = boxes[:, :2], np.array([width, height]) - boxes[:, 2:]
    for _ in range(_PUSHES):
        is_clear = True
        for a in range(len(points)):
            for b in range(a):
                ends = np.minimum(points[a] + boxes[a, 2:], points[b] + boxes[b, 2:])
                starts = np.maximum(points[a] - boxes[a, :2], points[b] - boxes[b, :2])
                overlap = ends - starts + _GAP
                if (overlap <= 0).any():
                    continue
                is_clear = False
                axis = int(overlap[1] <= overlap[0])
                push = 0.25 * overlap[axis] * (1.0 if points[a, axis] >= points[b, axis] else -1.0)
                points[a, axis] += push
                points[b, axis] -= push
        points = np.clip(points, low, np.maximum(low, high))
        if is_clear:
            break
    return points
