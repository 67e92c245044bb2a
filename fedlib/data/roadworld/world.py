"""The world: road users and other bodies at their places, and what a ray meets first.

Cameras and laser scanners ask the same question, :meth:`World.intersect`. Rays start in one point, the sensor;
seen from there each face of a convex solid is a plane g . d = w in the ray's direction d, where w is the *inverse*
of the distance to the plane (in lengths of d) and g = normal / offset does not depend on the ray. A ray enters a
solid at the smallest w of the faces that look at the sensor and leaves it at the largest w of the others (the slab
method of Kay and Kajiya, 1986, in inverse distance), and the nearest solid is the one with the largest entry w.
So the inner loop has no division and runs on whole blocks of rays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedlib.data.roadworld.solids import Solid, turned

Colour = tuple[float, float, float]
FINISHES = ("matt", "paint", "glass", "lamp", "leaves", "facade", "ground")
_TINY = 1e-9


@dataclass(frozen=True, eq=False)
class Part:
    """One convex piece of a body.

    Attributes:
        name: what it is: cab, wheel, window, rider, ...
        solid: its shape in the frame of the body.
        colour: albedo, red, green and blue in 0..1, linear light.
        finish: one of ``FINISHES``: how it reflects light, or which pattern it carries.
    """

    name: str
    solid: Solid
    colour: Colour
    finish: str = "matt"


class Body:
    """A rigid thing made of parts; x forward, y left, z up, standing on z = 0.

    Attributes:
        kind: a nuScenes detection class, or a word for other things (building, tree, ...).
        parts: its pieces.
        style: variety inside the kind, for example the body type of a car.
    """

    def __init__(self, kind: str, parts: Iterable[Part], style: str = "") -> None:
        self.kind = kind
        self.style = style
        self.parts = tuple(parts)
        self.normals = np.concatenate([part.solid.normals for part in self.parts])
        self.offsets = np.concatenate([part.solid.offsets for part in self.parts])
        self.faces = np.array([len(part.solid.offsets) for part in self.parts])
        self.corners = np.concatenate([part.solid.corners for part in self.parts])
        self.corner_counts = np.array([len(part.solid.corners) for part in self.parts])
        self.colours = np.array([part.colour for part in self.parts], dtype=np.float32)
        self.finishes = np.array([FINISHES.index(part.finish) for part in self.parts], dtype=np.int8)

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest x, y, z in metres: the annotated box in the frame of the body."""
        return self.corners.min(axis=0), self.corners.max(axis=0)

    @cached_property
    def size(self) -> tuple[float, float, float]:
        """Width, length and height of the annotated box in metres (the order of nuScenes)."""
        x, y, z = (self.bounds[1] - self.bounds[0]).tolist()
        return y, x, z

    @cached_property
    def reach(self) -> tuple[float, float]:
        """Half of the diagonal of the box's footprint, and of the box, in metres."""
        width, length, height = self.size
        return 0.5 * math.hypot(width, length), 0.5 * math.hypot(width, length, height)


@dataclass(frozen=True, eq=False)
class Placed:
    """A body at its place.

    Attributes:
        body: what stands there.
        position: (x, y, z) of the body's origin in the world, metres.
        yaw: heading, radians about z.
        shade: whether it throws a shadow that is looked at.
    """

    body: Body
    position: tuple[float, float, float]
    yaw: float
    shade: bool = True

    def to_world(self, points: np.ndarray) -> np.ndarray:
        """Return points (..., 3) of the body's frame in the world's."""
        return points @ turned(self.yaw).T + self.position

    @property
    def box(self) -> np.ndarray:
        """The eight corners (8, 3) of the annotated box in the world."""
        low, high = self.body.bounds
        return self.to_world(
            np.array(
                [(x, y, z) for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2])]
            )
        )


@dataclass(frozen=True, eq=False)
class Hits:
    """What each ray meets first; arrays of the shape of the rays.

    Attributes:
        distance: float32, in lengths of the ray's direction; inf where nothing is met.
        face: int32, index into ``World.normals``; -1 where nothing is met.
        part: int32, index over the parts of all bodies in order; -1 where nothing is met.
        instance: int32, index into ``World.placed``; -1 where nothing is met.
    """

    distance: np.ndarray
    face: np.ndarray
    part: np.ndarray
    instance: np.ndarray


class World:
    """Bodies at their places.

    Attributes:
        placed: the bodies; ``Hits.instance`` counts them.
        normals: float64 (F, 3), outward normals of all faces in the world.
        offsets: float64 (F,), their planes.
        starts: int (P + 1,), faces of part p are ``starts[p]`` to ``starts[p + 1]``.
        part_instance: int32 (P,), the instance of each part.
        colours: float32 (P, 3), albedo.
        finishes: int8 (P,), index into ``FINISHES``.
        corners: float64 (V, 3), points of the world whose hull holds the part.
        corner_starts: int (P + 1,).
    """

    def __init__(self, placed: Sequence[Placed]) -> None:
        self.placed = tuple(placed)
        bodies = [item.body for item in self.placed]
        rotations = [turned(item.yaw) for item in self.placed]
        normals = [body.normals @ rotation.T for body, rotation in zip(bodies, rotations)]
        self.normals = np.concatenate(normals)
        self.offsets = np.concatenate(
            [item.body.offsets + n @ np.asarray(item.position) for item, n in zip(self.placed, normals)]
        )
        self.corners = np.concatenate(
            [item.body.corners @ rotation.T + item.position for item, rotation in zip(self.placed, rotations)]
        )
        self.starts = _starts([body.faces for body in bodies])
        self.corner_starts = _starts([body.corner_counts for body in bodies])
        self.part_instance = np.repeat(np.arange(len(bodies), dtype=np.int32), [len(b.parts) for b in bodies])
        self.face_part = np.repeat(np.arange(len(self.starts) - 1, dtype=np.int32), np.diff(self.starts))
        self.colours = np.concatenate([body.colours for body in bodies])
        self.finishes = np.concatenate([body.finishes for body in bodies])

    def intersect(
        self,
        position: np.ndarray,
        rotation: np.ndarray,
        rays: tuple[np.ndarray, np.ndarray, np.ndarray],
        windows: np.ndarray | None = None,
    ) -> Hits:
        """Find what each ray of a sensor meets first.

        Args:
            position: (3,) of the sensor in the world, metres.
            rotation: (3, 3), from the sensor's frame to the world's.
            rays: x, y and z of the directions in the sensor's frame, float32, each broadcastable to the grid
                (H, W). A camera gives (1, W), (H, 1) and (1, 1), which saves most of the arithmetic; a laser
                scanner gives its beams and azimuths.
            windows: int (P, 4), first row, row behind the last, first column, column behind the last of the rays
                that can meet each part (:meth:`Camera.windows`); None finds the rays near each body.

        Returns:
            Hits with arrays of shape (H, W).
        """
        height, width = np.broadcast_shapes(*(axis.shape for axis in rays))
        if windows is None:
            windows = self._windows(position, rotation, rays)[self.part_instance]
        offsets = self.offsets - self.normals @ position
        offsets = np.where(np.abs(offsets) < _TINY, _TINY, offsets)
        planes = ((self.normals @ rotation) / offsets[:, None]).astype(np.float32)
        facing = offsets < 0
        order = np.lexsort((~facing, self.face_part))  # within each part, faces that look at the sensor first
        planes, facing = planes[order][:, :, None, None], facing[order]
        counts = np.add.reduceat(facing, self.starts[:-1])
        nearest = np.zeros((height, width), dtype=np.float32)
        face = np.full((height, width), -1, dtype=np.int32)
        longest = float(np.sqrt(rays[0] ** 2 + rays[1] ** 2 + rays[2] ** 2).max())
        gaps = np.maximum(np.linalg.norm(self.spheres[:, :3] - position, axis=1) - self.spheres[:, 3], _TINY)
        seen = (counts > 0) & (windows[:, 0] < windows[:, 1]) & (windows[:, 2] < windows[:, 3])
        parts = np.argsort(gaps, kind="stable")  # from near to far, so that much of what is hidden is skipped
        for part in parts[seen[parts]]:
            first, last, left, right = windows[part]
            block = nearest[first:last, left:right]
            if block.min() * gaps[part] > longest:
                continue  # every ray meets something nearer
            start, front, end = self.starts[part], self.starts[part] + counts[part], self.starts[part + 1]
            x, y, z = (_cut(axis, first, last, left, right) for axis in rays)
            g = planes[start:end]
            inverse = g[:, 0] * x + (g[:, 1] * y + g[:, 2] * z)
            entry = inverse[: front - start].min(axis=0)
            exit_ = inverse[front - start :].max(axis=0)
            hit = (entry > block) & (entry >= exit_)
            if hit.any():
                at = inverse[: front - start, hit].argmin(axis=0)
                face[first:last, left:right][hit] = order[start + at]
                block[hit] = entry[hit]
        part_of = np.where(face >= 0, self.face_part[face], -1)
        instance = np.where(face >= 0, self.part_instance[part_of], -1)
        with np.errstate(divide="ignore"):
            return Hits(1 / nearest, face, part_of, instance)

    @cached_property
    def spheres(self) -> np.ndarray:
        """Middle x, y, z and radius (P, 4) of a sphere around each part, metres."""
        starts = self.corner_starts[:-1]
        low = np.minimum.reduceat(self.corners, starts)
        high = np.maximum.reduceat(self.corners, starts)
        return np.column_stack([(low + high) / 2, np.linalg.norm(high - low, axis=1) / 2])

    def _windows(
        self, position: np.ndarray, rotation: np.ndarray, rays: tuple[np.ndarray, np.ndarray, np.ndarray]
    ) -> np.ndarray:
        """Return the rows and columns (instances, 4) of the rays that meet a sphere around each body."""
        x, y, z = rays
        squared = x * x + y * y + z * z
        height, width = squared.shape
        windows = np.zeros((len(self.placed), 4), dtype=np.int64)
        for number, item in enumerate(self.placed):
            box = item.box
            middle, radius = box.mean(axis=0), item.body.reach[1] + 1e-3
            a, b, c = ((middle - position) @ rotation).tolist()
            beyond = a * a + b * b + c * c - radius * radius
            if beyond <= 0:
                windows[number] = 0, height, 0, width
                continue
            along = x * a + y * b + z * c
            meets = (along > 0) & (along * along >= beyond * squared)
            rows, columns = np.flatnonzero(meets.any(axis=1)), np.flatnonzero(meets.any(axis=0))
            if len(rows):
                windows[number] = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
        return windows

    def shaded(self, points: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """Say which points have a body between them and the sun.

        Args:
            points: float32 (N, 3), world, metres.
            direction: (3,), unit vector towards the sun.

        Returns:
            bool (N,). Only bodies placed with ``shade`` throw shadows.
        """
        across = np.cross(direction, [1.0, 0.0, 0.0] if abs(direction[0]) < 0.9 else [0.0, 1.0, 0.0])
        across /= np.linalg.norm(across)
        screen = np.stack([across, np.cross(direction, across)], axis=1)  # the plane that the sun looks at
        axes = screen.astype(np.float32)
        flat = (
            points[:, :1].T * axes[0][:, None]
            + points[:, 1:2].T * axes[1][:, None]
            + points[:, 2:].T * axes[2][:, None]
        )
        corners = self.corners @ screen
        low = np.minimum.reduceat(corners, self.corner_starts[:-1])
        high = np.maximum.reduceat(corners, self.corner_starts[:-1])
        slope = self.normals @ direction
        slope = np.where(np.abs(slope) < 1e-6, 1e-6, slope)
        leaving = slope > 0
        order = np.lexsort(
            (leaving, self.face_part)
        )  # within each part, faces that look away from the sun first
        entering = np.add.reduceat(~leaving, self.starts[:-1])
        planes = (np.column_stack([self.normals, self.offsets])[order] / slope[order, None]).astype(
            np.float32
        )
        dark = np.zeros(len(points), dtype=bool)
        ends = np.searchsorted(self.part_instance, np.arange(len(self.placed) + 1))
        for item, first, last in zip(self.placed, ends, ends[1:]):
            if not item.shade:
                continue
            parts = range(first, last)
            near = _within(flat, low[first:last].min(axis=0), high[first:last].max(axis=0)) & ~dark
            rows = np.flatnonzero(near)
            for part in parts:
                if len(rows) == 0:
                    break
                inside = rows[_within(flat[:, rows], low[part], high[part])]
                if len(inside) == 0:
                    continue
                g = planes[self.starts[part] : self.starts[part + 1], :, None]
                x, y, z = points[inside].T
                reach = g[:, 3] - (g[:, 0] * x + g[:, 1] * y + g[:, 2] * z)
                enter = reach[: entering[part]].max(axis=0)
                leave = reach[entering[part] :].min(axis=0)
                dark[inside[leave > np.maximum(enter, 0.02)]] = True
        return dark


def _within(flat: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Say which points of the plane (2, N) lie in a rectangle."""
    return (flat[0] >= low[0]) & (flat[0] <= high[0]) & (flat[1] >= low[1]) & (flat[1] <= high[1])


def _cut(axis: np.ndarray, first: int, last: int, left: int, right: int) -> np.ndarray:
    """Cut a window out of an axis of the rays; a direction in which it does not vary stays whole."""
    rows = slice(first, last) if axis.shape[0] > 1 else slice(None)
    columns = slice(left, right) if axis.shape[1] > 1 else slice(None)
    return axis[rows, columns]


def _starts(counts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.concatenate(counts))])
