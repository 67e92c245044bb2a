"""Convex solids as intersections of half-spaces: the only shape that the ray caster knows.

A solid is the set of points x (metres) with ``normals @ x <= offsets``. Round things are prisms with enough sides.
All functions return solids in the frame of the body: x forward, y to the left, z up, ground at z = 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True, eq=False)
class Solid:
    """A convex polyhedron.

    Attributes:
        normals: float64 (F, 3), outward unit normals.
        offsets: float64 (F,), distance of each face's plane from the origin along its normal, metres.
        corners: float64 (V, 3), points whose hull holds the solid and touches it on the six axis-parallel sides.
    """

    normals: np.ndarray
    offsets: np.ndarray
    corners: np.ndarray

    def moved(self, rotation: np.ndarray, shift: Sequence[float] | np.ndarray) -> Solid:
        """Return the solid after x -> rotation (3, 3) @ x + shift (3,)."""
        normals = self.normals @ rotation.T
        return Solid(normals, self.offsets + normals @ np.asarray(shift), self.corners @ rotation.T + shift)

    def scaled(self, factor: float) -> Solid:
        """Return the solid enlarged about the origin."""
        return Solid(self.normals, self.offsets * factor, self.corners * factor)


def extrude(
    profile: Sequence[tuple[float, float]], half_width: float, top: float | None = None, y: float = 0.0
) -> Solid:
    """Sweep a side profile across the body.

    Args:
        profile: points (x, z) in metres; their convex hull is taken.
        half_width: half of the width at the lowest z.
        top: half of the width at the highest z; None means the same.
        y: centre of the width.
    """
    points = np.array(_hull(profile), dtype=np.float64)
    following = np.roll(points, -1, axis=0)
    dx, dz = (following - points).T
    length = np.hypot(dx, dz)
    nx, nz = dz / length, -dx / length
    low, high = points[:, 1].min(), points[:, 1].max()
    slope = (half_width - (half_width if top is None else top)) / (high - low)
    ny = 1 / np.hypot(1.0, slope)
    normals = np.concatenate(
        [
            np.stack([nx, np.zeros_like(nx), nz], axis=1),
            [[0.0, ny, slope * ny], [0.0, -ny, slope * ny]],
        ]
    )
    widths = half_width - slope * (points[:, 1] - low)
    corners = np.concatenate(
        [np.stack([points[:, 0], y + side * widths, points[:, 1]], axis=1) for side in (-1, 1)]
    )
    offsets = np.concatenate(
        [
            nx * points[:, 0] + nz * points[:, 1],
            [ny * (half_width + slope * low) + ny * y, ny * (half_width + slope * low) - ny * y],
        ]
    )
    return Solid(normals, offsets, corners)


def _hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the corners of the convex hull, counter-clockwise (Andrew's monotone chain, 1979)."""
    ordered = sorted(set(points))
    hull: list[tuple[float, float]] = []
    for sweep in (ordered, ordered[::-1]):
        chain: list[tuple[float, float]] = []
        for p in sweep:
            while len(chain) > 1 and _cross(chain[-2], chain[-1], p) <= 1e-9:
                chain.pop()
            chain.append(p)
        hull += chain[:-1]
    return hull


def _cross(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def box(x: tuple[float, float], y: tuple[float, float], z: tuple[float, float]) -> Solid:
    """Return the box between the given bounds in metres."""
    normals = np.array(
        [[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]], dtype=np.float64
    )
    offsets = np.array([x[1], -x[0], y[1], -y[0], z[1], -z[0]], dtype=np.float64)
    corners = np.array([(a, b, c) for a in x for b in y for c in z], dtype=np.float64)
    return Solid(normals, offsets, corners)


def rod(
    start: Sequence[float],
    end: Sequence[float],
    radius: float,
    end_radius: float | None = None,
    sides: int = 6,
) -> Solid:
    """Return a straight rod (a prism, or a cut cone) between two points.

    Args:
        start: (x, y, z) of the middle of one end, metres.
        end: of the other end.
        radius: radius at the start.
        end_radius: radius at the end; None means the same.
        sides: number of side faces.
    """
    first, last = np.array(start, dtype=np.float64), np.array(end, dtype=np.float64)
    dx, dy, dz = (last - first).tolist()
    length = math.sqrt(dx * dx + dy * dy + dz * dz)
    dx, dy, dz = dx / length, dy / length, dz / length
    # two unit vectors at right angles to the axis (dx, dy, dz): its products with z, or with x if it is upright
    flat = math.hypot(dx, dy) if abs(dz) < 0.9 else math.hypot(dy, dz)
    ax, ay, az = (dy / flat, -dx / flat, 0.0) if abs(dz) < 0.9 else (0.0, dz / flat, -dy / flat)
    frame = np.array([(ax, ay, az), (dy * az - dz * ay, dz * ax - dx * az, dx * ay - dy * ax), (dx, dy, dz)])
    slope = (radius - (radius if end_radius is None else end_radius)) / length
    scale = 1 / math.hypot(1.0, slope)
    sloped, rim = _polygon(sides)
    normals = np.concatenate([(sloped + (0.0, 0.0, slope)) @ frame * scale, frame[2:], -frame[2:]])
    offsets = normals @ first
    offsets[:sides] += radius * scale
    offsets[sides] += length
    edge = rim @ frame
    corners = np.concatenate([first + radius * edge, last + (radius - slope * length) * edge])
    return Solid(normals, offsets, corners)


@lru_cache
def _polygon(sides: int) -> tuple[np.ndarray, np.ndarray]:
    """Return side normals and corners (sides, 3) of the regular polygon around the unit circle in x, y."""
    middle, edge = ((np.arange(sides) + shift) * (2 * np.pi / sides) for shift in (0.5, 0.0))
    flat = np.zeros(sides)
    normals = np.stack([np.cos(middle), np.sin(middle), flat], axis=1)
    return normals, np.stack([np.cos(edge), np.sin(edge), flat], axis=1) / np.cos(np.pi / sides)


_BALL = np.array(
    [(a, b, c) for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1) if a or b or c], float
)
_BALL /= np.linalg.norm(_BALL, axis=1, keepdims=True)


def ball(centre: Sequence[float], radii: Sequence[float]) -> Solid:
    """Return 26 tangent planes of the ellipsoid with the given centre and half axes in metres."""
    middle, half = np.asarray(centre, dtype=np.float64), np.asarray(radii, dtype=np.float64)
    offsets = np.linalg.norm(_BALL * half, axis=1) + _BALL @ middle
    corners = middle + np.array([(a, b, c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]) * half
    return Solid(_BALL, offsets, corners)


def turned(angle: float, axis: str = "z") -> np.ndarray:
    """Return the (3, 3) rotation by ``angle`` radians about the axis x, y or z."""
    first, second = {"z": (0, 1), "y": (2, 0), "x": (1, 2)}[axis]
    rotation = np.eye(3)
    rotation[first, first] = rotation[second, second] = np.cos(angle)
    rotation[second, first] = np.sin(angle)
    rotation[first, second] = -rotation[second, first]
    return rotation
