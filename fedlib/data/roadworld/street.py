"""Traffic cones, barriers, and what is not labelled: buildings, trees, poles, hedges, the ground."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fedlib.data.roadworld import colours
from fedlib.data.roadworld.solids import Solid, ball, box, extrude, rod
from fedlib.data.roadworld.world import Body, Colour, Part


def traffic_cone(rng: np.random.Generator) -> Body:
    """Draw a traffic cone with bands, or a slim post of the same use."""
    height = float(rng.uniform(0.5, 1.05))
    slim = rng.random() < 0.2
    low = float(rng.uniform(0.05, 0.07)) if slim else height * float(rng.uniform(0.17, 0.22))
    high = 0.8 * low if slim else 0.18 * low
    colour = colours.vary(rng, colours.ORANGE)
    half = max(1.35 * low, 0.17)
    parts = [
        Part(
            "base",
            box((-half, half), (-half, half), (0.0, 0.05)),
            colour if rng.random() < 0.5 else colours.DARK,
        )
    ]
    cuts = [0.04, 0.36, 0.56, 0.70, 0.84, 1.0] if rng.random() < 0.5 else [0.04, 0.42, 0.68, 1.0]
    for number, (start, end) in enumerate(pairwise(cuts)):
        r0, r1 = (low + (high - low) * t for t in (start, end))
        band = rod((0, 0, start * height), (0, 0, end * height), r0, r1, sides=10)
        parts.append(Part("band", band, colours.WHITE if number % 2 else colour))
    return Body("traffic_cone", parts, "post" if slim else "cone")


def barrier(rng: np.random.Generator) -> Body:
    """Draw a barrier; it blocks the x direction and is long in y, as in nuScenes."""
    style = ("plastic", "concrete", "board", "fence")[rng.choice(4, p=[0.45, 0.2, 0.2, 0.15])]
    builders = {"plastic": _plastic, "concrete": _concrete, "board": _board, "fence": _fence}
    return Body("barrier", builders[style](rng), style)


def _jersey(half_length: float, y: float, height: float, foot: float) -> Solid:
    """One segment with the profile of a Jersey barrier; convex, so without the waist."""
    profile = [(-foot, 0.0), (foot, 0.0), (foot, 0.12), (0.11, height), (-0.11, height), (-foot, 0.12)]
    return extrude(profile, half_length, y=y)


def _plastic(rng: np.random.Generator) -> list[Part]:
    height, foot = float(rng.uniform(0.8, 1.05)), float(rng.uniform(0.22, 0.3))
    number, length = int(rng.integers(1, 4)), float(rng.uniform(0.9, 1.4))
    first = colours.vary(rng, (0.62, 0.09, 0.03))
    second = colours.vary(rng, colours.WHITE) if rng.random() < 0.8 else first
    parts = []
    for k in range(number):
        y = (k - (number - 1) / 2) * length
        colour = second if k % 2 else first
        parts.append(Part("segment", _jersey(length / 2 - 0.02, y, height, foot), colour))
        recess = box((-0.2, 0.2), (y - 0.18, y + 0.18), (0.42 * height, 0.62 * height))
        parts.append(Part("recess", recess, colours.darker(colour, 0.55)))
    return parts


def _concrete(rng: np.random.Generator) -> list[Part]:
    number, length = int(rng.integers(1, 3)), float(rng.uniform(1.5, 3.0))
    colour = colours.vary(rng, (0.42, 0.41, 0.38))
    height = float(rng.uniform(0.75, 1.0))
    parts = [
        Part("segment", _jersey(length / 2 - 0.015, (k - (number - 1) / 2) * length, height, 0.3), colour)
        for k in range(number)
    ]
    if rng.random() < 0.4:
        strip = box((-0.2, 0.2), (-length / 2, length / 2), (0.55 * height, 0.68 * height))
        parts.append(Part("strip", strip, colours.YELLOW))
    return parts


def _board(rng: np.random.Generator) -> list[Part]:
    """Striped boards on two legs."""
    length, height = float(rng.uniform(1.2, 2.4)), float(rng.uniform(0.9, 1.2))
    stripe = colours.one_of(rng, (colours.ORANGE, (0.5, 0.03, 0.03)))
    parts = []
    for z in (height - 0.15, height - 0.52):
        edges = np.linspace(-length / 2, length / 2, 7)
        for k, (low, high) in enumerate(pairwise(edges)):
            colour: Colour = stripe if k % 2 else colours.WHITE
            parts.append(
                Part("board", box((-0.02, 0.02), (float(low), float(high)), (z - 0.12, z + 0.12)), colour)
            )
    for y in (-0.42 * length, 0.42 * length):
        for x in (-0.35, 0.35):
            parts.append(Part("leg", rod((0, y, height), (x, y, 0), 0.03, sides=4), colours.DARK))
    return parts


def _fence(rng: np.random.Generator) -> list[Part]:
    """A crowd-control fence of steel bars."""
    length, height = float(rng.uniform(1.8, 2.6)), float(rng.uniform(1.0, 1.15))
    colour = colours.one_of(rng, (colours.STEEL, colours.CHROME, colours.YELLOW))
    parts = [
        Part("rail", rod((0, -length / 2, z), (0, length / 2, z), 0.03, sides=4), colour)
        for z in (0.18, height)
    ]
    for y in np.linspace(-length / 2, length / 2, 12):
        parts.append(Part("bar", rod((0, float(y), 0.18), (0, float(y), height), 0.018, sides=4), colour))
    for y in (-0.4 * length, 0.4 * length):
        parts.append(Part("foot", box((-0.3, 0.3), (y - 0.03, y + 0.03), (0.0, 0.06)), colour))
    return parts


def ground() -> Body:
    """The road's plane z = 0; its pattern is drawn by the renderer."""
    far = 2000.0
    return Body(
        "ground", [Part("ground", box((-far, far), (-far, far), (-far, 0.0)), (0.12, 0.12, 0.12), "ground")]
    )


def building(rng: np.random.Generator) -> Body:
    """Draw a building front."""
    length, depth, height = float(rng.uniform(7, 22)), float(rng.uniform(6, 10)), float(rng.uniform(3.5, 16))
    wall = colours.one_of(
        rng, ((0.45, 0.4, 0.33), (0.3, 0.16, 0.1), (0.5, 0.5, 0.48), (0.2, 0.21, 0.24), (0.38, 0.32, 0.22))
    )
    finish = "facade" if rng.random() < 0.75 else "matt"
    parts = [Part("wall", box((-length / 2, length / 2), (-depth / 2, depth / 2), (0, height)), wall, finish)]
    if rng.random() < 0.5:
        shop = box((-length / 2 - 0.1, length / 2 + 0.1), (-depth / 2 - 0.5, depth / 2 + 0.5), (2.9, 3.3))
        parts.append(Part("canopy", shop, colours.cloth(rng)))
    return Body("building", parts)


def tree(rng: np.random.Generator) -> Body:
    """Draw a tree."""
    height, crown = float(rng.uniform(4, 9)), float(rng.uniform(1.2, 2.8))
    leaf = colours.one_of(rng, ((0.05, 0.11, 0.03), (0.07, 0.14, 0.03), (0.1, 0.12, 0.03)))
    trunk = rod((0, 0, 0), (0, 0, height - crown), float(rng.uniform(0.1, 0.22)))
    parts = [Part("trunk", trunk, (0.1, 0.07, 0.05))]
    for _ in range(3):
        x, y, z = rng.uniform(-0.5, 0.5, 3) * crown
        centre = (float(x), float(y), float(height - 0.8 * crown + z))
        parts.append(
            Part(
                "crown",
                ball(centre, (crown * rng.uniform(0.6, 1.0, 3)).tolist()),
                colours.vary(rng, leaf),
                "leaves",
            )
        )
    return Body("tree", parts)


def hedge(rng: np.random.Generator) -> Body:
    """Draw a hedge or a low wall."""
    length, height = float(rng.uniform(4, 14)), float(rng.uniform(0.5, 2.2))
    green = rng.random() < 0.65
    colour = colours.one_of(
        rng, ((0.05, 0.11, 0.03), (0.08, 0.13, 0.04)) if green else ((0.4, 0.38, 0.34), (0.25, 0.14, 0.1))
    )
    block = box((-length / 2, length / 2), (-0.4, 0.4), (0, height))
    return Body("hedge", [Part("hedge", block, colour, "leaves" if green else "matt")])


def pole(rng: np.random.Generator) -> Body:
    """Draw a lamp post or a sign post."""
    height = float(rng.uniform(2.4, 8))
    colour = colours.one_of(rng, (colours.STEEL, colours.DARK, (0.2, 0.22, 0.2)))
    parts = [Part("post", rod((0, 0, 0), (0, 0, height), float(rng.uniform(0.04, 0.11))), colour)]
    if height < 4:
        sign = colours.one_of(rng, (colours.WHITE, (0.05, 0.12, 0.4), (0.5, 0.03, 0.03), (0.05, 0.25, 0.1)))
        parts.append(Part("sign", box((-0.03, 0.03), (-0.3, 0.3), (height - 0.7, height)), sign))
    return Body("pole", parts)
