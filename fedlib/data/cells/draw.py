"""Pictures of cells: outline, nucleus, texture and stain, many at a time.

A class is a point in a small space of shapes and colours; every picture scatters around it, so classes overlap. A
hospital adds its own stain, brightness, sharpness and noise to all of its pictures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedlib import seeds

HOSPITALS = 5
SHAPE_SCATTER = 0.16
"""Standard deviation of shapes around their class, in units of a parameter's range."""
COLOUR_SHARE, TONE_SCATTER, HUE_SCATTER = 0.5, 0.3, 0.15
"""Part of the colours' range over which classes lie; standard deviation of a picture's tone (all channels
together) and hue (each channel). Stains say little about a class."""
_BATCH = 1024


@dataclass(frozen=True)
class Looks:
    """Parameters of pictures, one row each; all arrays are float32 with n rows.

    Attributes:
        radius: of the body, in half sides of the picture.
        stretch: long over short axis.
        lobes: amplitude of 2 to 5 lobes of the outline (n, 4).
        nucleus: radius of the nucleus in body radii.
        offset: of the nucleus from the centre, in body radii.
        grain: waves of the texture across the picture.
        contrast: of the texture.
        body: colour of the body (n, 3), 0 to 1.
        core: colour of the nucleus (n, 3).
        ground: colour around it (n, 3).
    """

    radius: np.ndarray
    stretch: np.ndarray
    lobes: np.ndarray
    nucleus: np.ndarray
    offset: np.ndarray
    grain: np.ndarray
    contrast: np.ndarray
    body: np.ndarray
    core: np.ndarray
    ground: np.ndarray


_RANGES = (  # name, columns, lowest, highest
    ("radius", 1, 0.45, 0.85),
    ("stretch", 1, 1.0, 1.8),
    ("lobes", 4, 0.0, 0.16),
    ("nucleus", 1, 0.25, 0.75),
    ("offset", 1, 0.0, 0.3),
    ("grain", 1, 2.0, 9.0),
    ("contrast", 1, 0.02, 0.25),
    ("body", 3, 0.45, 0.85),
    ("core", 3, 0.15, 0.6),
    ("ground", 3, 0.75, 0.95),
)


def class_looks(flag: str, num_classes: int, labels: np.ndarray, rng: np.random.Generator) -> Looks:
    """Return the looks of pictures of ``labels`` (n,): their class's, scattered."""
    found = {}
    for name, columns, low, high in _RANGES:
        # the classes of a set lie apart on every axis: one draw in each of num_classes strips, in a random order
        draw = seeds.rng(0, "cells", flag, name)
        strips = np.stack([draw.permutation(num_classes) for _ in range(columns)], axis=1)
        centres = (strips + draw.random((num_classes, columns))) / num_classes
        noise = rng.standard_normal((len(labels), columns))
        if columns == 3:
            tone = rng.standard_normal((len(labels), 1))
            centres = 0.5 + COLOUR_SHARE * (centres - 0.5)
            values = centres[labels] + TONE_SCATTER * tone + HUE_SCATTER * noise
        else:
            values = centres[labels] + SHAPE_SCATTER * noise
        found[name] = (low + (high - low) * np.clip(values, -0.2, 1.2)).astype(np.float32)
    return Looks(**{name: v[:, 0] if v.shape[1] == 1 else v for name, v in found.items()})


def pictures(
    flag: str, num_classes: int, labels: np.ndarray, hospitals: np.ndarray, size: int, grey: bool, seed: int,
    split: str,
) -> np.ndarray:  # fmt: skip
    """Return pictures (n, size, size, 1 or 3) uint8 of ``labels`` (n,) taken in ``hospitals`` (n,)."""
    made = []
    for i, rows in enumerate(_rows(len(labels))):
        rng = seeds.rng(seed, "cells", flag, split, i)
        made.append(_batch(flag, num_classes, labels[rows], hospitals[rows], size, grey, rng))
    return np.concatenate(made)


def _rows(count: int) -> Iterator[slice]:
    for start in range(0, count, _BATCH):
        yield slice(start, start + _BATCH)


def _batch(
    flag: str, num_classes: int, labels: np.ndarray, hospitals: np.ndarray, size: int, grey: bool,
    rng: np.random.Generator,
) -> np.ndarray:  # fmt: skip
    looks = class_looks(flag, num_classes, labels, rng)
    n = len(labels)

    def each(values: np.ndarray) -> np.ndarray:
        return values.astype(np.float32)[:, None, None]

    axis = (np.arange(size, dtype=np.float32) + 0.5) / size * 2 - 1
    x, y = (grid[None] - each(rng.uniform(-0.12, 0.12, n)) for grid in np.meshgrid(axis, axis))
    turn = each(rng.uniform(0, 2 * np.pi, n))
    u = (np.cos(turn) * x + np.sin(turn) * y) * np.sqrt(each(looks.stretch))
    v = (np.cos(turn) * y - np.sin(turn) * x) / np.sqrt(each(looks.stretch))
    angle, distance = np.arctan2(v, u), np.hypot(u, v)
    outline = np.ones_like(angle)
    for k in range(4):
        phase = each(rng.uniform(0, 2 * np.pi, n))
        outline += each(looks.lobes[:, k]) * np.cos((k + 2) * angle + phase)
    soft = 2.0 / size  # edges are about a pixel wide
    body = _inside(each(looks.radius) * outline - distance, soft)
    shift = each(looks.offset * looks.radius)
    core = _inside(
        each(looks.radius * looks.nucleus) * (0.5 + 0.5 * outline) - np.hypot(u - shift, v), 2 * soft
    )
    texture = np.zeros_like(angle)
    for _ in range(3):
        way, phase = each(rng.uniform(0, np.pi, n)), each(rng.uniform(0, 2 * np.pi, n))
        texture += np.sin(np.pi * each(looks.grain) * (np.cos(way) * x + np.sin(way) * y) + phase)
    texture *= each(looks.contrast) / 2

    def paint(colour: np.ndarray) -> np.ndarray:
        return colour[:, None, None, :]

    image = paint(looks.ground) * np.ones((1, size, size, 1), dtype=np.float32)
    image += (paint(looks.body) - image) * body[..., None]
    image += (paint(looks.core) - image) * (core * body)[..., None]
    image *= 1 + texture[..., None] * body[..., None]
    if grey:
        image = image.mean(3, keepdims=True)
    image = _taken(image, hospitals, rng)
    return np.clip(image * 255 + 0.5, 0, 255).astype(np.uint8)


def _taken(image: np.ndarray, hospitals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return pictures as their hospitals take them: stain, brightness, sharpness, noise."""
    channels = image.shape[3]
    for hospital in range(HOSPITALS):
        rows = np.flatnonzero(hospitals == hospital)
        if not len(rows):
            continue
        own = seeds.rng(0, "hospital", hospital)
        stain = own.uniform(0.8, 1.2, 3)[:channels] if channels == 3 else np.ones(1)
        gamma, blur, noise = own.uniform(0.75, 1.35), own.uniform(0.0, 0.6), own.uniform(0.02, 0.05)
        part = np.clip(image[rows], 0.0, 1.5) ** gamma * stain.astype(np.float32)
        near = sum(np.roll(part, step, axis) for axis in (1, 2) for step in (-1, 1)) / 4
        part = (1 - blur) * part + blur * near
        image[rows] = part + noise * rng.standard_normal(part.shape, dtype=np.float32)
    return image


def _inside(depth: np.ndarray, soft: float) -> np.ndarray:
    return np.clip(depth / soft + 0.5, 0.0, 1.0)
