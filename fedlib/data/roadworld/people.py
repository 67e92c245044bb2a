"""Pedestrians, cyclists and motorcyclists."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fedlib.data.roadworld import colours
from fedlib.data.roadworld.solids import ball, box, extrude, rod, turned
from fedlib.data.roadworld.world import Body, Colour, Part

Point = tuple[float, float, float]


def pedestrian(rng: np.random.Generator) -> Body:
    """Draw a pedestrian: walking, standing, sometimes a child, with a bag or an umbrella."""
    child = rng.random() < 0.1
    height = float(np.clip(rng.normal(1.2 if child else 1.72, 0.09), 0.95, 2.0))
    h = height / 1.75  # all measures below are those of a person of 1.75 m
    wide = float(np.exp(0.12 * rng.normal()))
    walking = rng.random() < 0.7
    stride = float(rng.uniform(0.1, 0.38)) if walking else 0.03
    trousers, shirt = colours.cloth(rng), colours.cloth(rng)
    if rng.random() < 0.12:
        shirt = colours.one_of(rng, (colours.ORANGE, (0.55, 0.65, 0.05)))  # high-visibility vest
    skin, hair = (
        colours.one_of(rng, colours.SKIN),
        colours.one_of(rng, ((0.02, 0.015, 0.01), (0.12, 0.07, 0.03), (0.3, 0.28, 0.25))),
    )
    sleeves = shirt if rng.random() < 0.6 else skin
    legs = trousers if rng.random() < 0.85 else skin
    parts = []
    for side in (-1, 1):
        foot = side * stride
        knee = (0.55 * foot + 0.05, side * 0.1, 0.47)
        parts.append(Part("leg", rod((0, side * 0.09, 0.9), knee, 0.095 * wide, 0.075), trousers))
        parts.append(Part("leg", rod(knee, (foot, side * 0.1, 0.06), 0.07, 0.05), legs))
        parts.append(
            Part(
                "foot",
                box((foot - 0.1, foot + 0.17), (side * 0.1 - 0.05, side * 0.1 + 0.05), (0, 0.09)),
                colours.DARK,
            )
        )
        hand = -side * 0.8 * stride
        elbow = (0.5 * hand - 0.03, side * 0.27 * wide, 1.12)
        parts.append(Part("arm", rod((0, side * 0.22 * wide, 1.42), elbow, 0.06, 0.05), shirt))
        parts.append(Part("arm", rod(elbow, (hand + 0.08, side * 0.25 * wide, 0.86), 0.05, 0.04), sleeves))
    torso = extrude(
        [(-0.12, 0.85), (0.12, 0.85), (0.13, 1.35), (0.07, 1.5), (-0.08, 1.5), (-0.13, 1.35)],
        0.17 * wide,
        0.2 * wide,
    )
    parts.append(Part("torso", torso, shirt))
    if rng.random() < 0.15:  # skirt or long coat
        coat = extrude([(-0.2, 0.5), (0.2, 0.5), (0.13, 1.0), (-0.13, 1.0)], 0.24 * wide, 0.18 * wide)
        parts.append(Part("coat", coat, colours.vary(rng, shirt)))
    parts += _head((0.02, 0.0, 1.62), skin, hair)
    if rng.random() < 0.2:
        parts.append(Part("bag", box((-0.34, -0.12), (-0.16, 0.16), (1.0, 1.42)), colours.cloth(rng)))
    if rng.random() < 0.05:
        parts.append(
            Part("umbrella", rod((0.1, 0, 1.8), (0.1, 0, 2.1), 0.55, 0.05, sides=8), colours.cloth(rng))
        )
    parts = [Part(p.name, p.solid.scaled(h), p.colour, p.finish) for p in parts]
    return Body("pedestrian", parts, "walking" if walking else "standing")


def bicycle(rng: np.random.Generator) -> Body:
    """Draw a bicycle, with or without a rider."""
    radius = float(rng.uniform(0.29, 0.36))
    base = float(rng.uniform(0.98, 1.1))
    paint = colours.cloth(rng) if rng.random() < 0.7 else colours.CHROME
    front, back = (base / 2, 0.0, radius), (-base / 2, 0.0, radius)
    pedal, seat, head = (-0.08, 0.0, 0.28), (-0.22, 0.0, 0.86), (0.36, 0.0, 0.86)
    parts = _ring(front, radius) + _ring(back, radius)
    tube = 0.024
    for start, end in (
        (head, front),
        (head, pedal),
        (seat, pedal),
        (seat, back),
        (pedal, back),
        (head, (-0.2, 0.0, 0.76)),
    ):
        parts.append(Part("frame", rod(start, end, tube, sides=4), paint, "paint"))
    grip = (0.32, 0.0, 1.02)
    parts.append(Part("frame", rod(head, grip, tube, sides=4), paint, "paint"))
    parts.append(
        Part("handlebar", rod((0.32, -0.27, 1.02), (0.32, 0.27, 1.02), 0.025, sides=4), colours.DARK)
    )
    parts.append(Part("saddle", box((-0.36, -0.1), (-0.08, 0.08), (0.88, 0.95)), colours.DARK))
    if rng.random() < 0.2:
        parts.append(Part("basket", box((0.38, 0.66), (-0.17, 0.17), (0.78, 1.02)), colours.cloth(rng)))
    ridden = rng.random() < 0.6
    if ridden:
        parts += _rider(
            (-0.2, 0.95), grip, pedal, lean=float(rng.uniform(0.12, 0.4)), helmet=rng.random() < 0.5, rng=rng
        )
    return Body("bicycle", parts, "with rider" if ridden else "without rider")


def motorcycle(rng: np.random.Generator) -> Body:
    """Draw a motorcycle or scooter, with or without a rider."""
    scooter = rng.random() < 0.4
    radius = 0.24 if scooter else 0.31
    base = float(rng.uniform(1.22, 1.32) if scooter else rng.uniform(1.36, 1.5))
    paint = colours.paint(rng) if rng.random() < 0.5 else colours.cloth(rng)
    x = base / 2
    parts = []
    for centre in (x, -x):
        parts.append(
            Part(
                "wheel", rod((centre, -0.07, radius), (centre, 0.07, radius), radius, sides=12), colours.TYRE
            )
        )
        parts.append(
            Part(
                "hub",
                rod((centre, -0.08, radius), (centre, 0.08, radius), 0.5 * radius, sides=8),
                colours.STEEL,
            )
        )
    parts.append(Part("fork", rod((x, 0, radius), (x - 0.3, 0, 0.98), 0.07, sides=4), colours.DARK))
    if scooter:
        parts += [
            Part(
                "shield",
                extrude([(x - 0.2, 0.35), (x - 0.12, 0.4), (x - 0.28, 1.0), (x - 0.36, 1.0)], 0.24, 0.2),
                paint,
                "paint",
            ),
            Part("floor", box((-0.1, x - 0.2), (-0.18, 0.18), (0.22, 0.36)), paint, "paint"),
            Part(
                "rear",
                extrude([(-x - 0.22, 0.5), (0.0, 0.3), (0.02, 0.72), (-x - 0.22, 0.76)], 0.19, 0.16),
                paint,
                "paint",
            ),
        ]
    else:
        parts += [
            Part("engine", box((-0.22, 0.28), (-0.2, 0.2), (0.26, 0.62)), colours.STEEL),
            Part(
                "tank",
                extrude([(-0.1, 0.68), (0.42, 0.62), (0.36, 0.92), (0.0, 0.88)], 0.17, 0.12),
                paint,
                "paint",
            ),
            Part(
                "tail",
                extrude([(-x - 0.15, 0.78), (-0.1, 0.62), (-0.1, 0.78), (-x - 0.15, 0.88)], 0.14, 0.11),
                paint,
                "paint",
            ),
            Part("exhaust", rod((0.1, -0.2, 0.35), (-x - 0.1, -0.22, 0.4), 0.06), colours.CHROME, "paint"),
        ]
        if rng.random() < 0.4:
            parts.append(
                Part(
                    "fairing",
                    extrude([(0.3, 0.6), (x, 0.75), (x - 0.1, 1.1), (0.35, 1.15)], 0.22, 0.12),
                    paint,
                    "paint",
                )
            )
    parts.append(Part("seat", box((-x - 0.1, 0.05), (-0.14, 0.14), (0.75, 0.83)), colours.DARK))
    parts.append(
        Part("handlebar", rod((x - 0.32, -0.36, 1.03), (x - 0.32, 0.36, 1.03), 0.035, sides=4), colours.DARK)
    )
    parts.append(Part("lamp", box((x - 0.22, x - 0.1), (-0.1, 0.1), (0.82, 0.99)), colours.LAMP, "lamp"))
    parts.append(
        Part("tail lamp", box((-x - 0.24, -x - 0.14), (-0.08, 0.08), (0.78, 0.87)), colours.RED_LAMP, "lamp")
    )
    if rng.random() < 0.3:
        parts.append(Part("box", box((-x - 0.32, -x + 0.12), (-0.2, 0.2), (0.84, 1.2)), colours.cloth(rng)))
    ridden = rng.random() < 0.65
    if ridden:
        grip = (x - 0.36, 0.0, 1.0)
        parts += _rider(
            (-0.18, 0.82), grip, (0.05, 0.0, 0.3), lean=float(rng.uniform(0.05, 0.3)), helmet=True, rng=rng
        )
    return Body("motorcycle", parts, "with rider" if ridden else "without rider")


def _head(centre: Point, skin: Colour, hair: Colour) -> list[Part]:
    x, y, z = centre
    return [
        Part("head", ball((x, y, z), (0.1, 0.08, 0.12)), skin),
        Part("hair", ball((x - 0.03, y, z + 0.035), (0.1, 0.09, 0.105)), hair),
    ]


def _ring(centre: Point, radius: float, pieces: int = 8) -> list[Part]:
    """A thin tyre that one can look through."""
    angle = np.arange(pieces + 1) * (2 * np.pi / pieces)
    points = [
        (centre[0] + radius * 0.92 * float(np.cos(a)), 0.0, centre[2] + radius * 0.92 * float(np.sin(a)))
        for a in angle
    ]
    return [Part("tyre", rod(p, q, 0.028, sides=4), colours.TYRE) for p, q in pairwise(points)]


def _rider(
    seat: tuple[float, float],
    grip: Point,
    pedal: Point,
    *,
    lean: float,
    helmet: bool,
    rng: np.random.Generator,
) -> list[Part]:
    """A seated person: hips at ``seat`` (x, z), hands at ``grip``, feet near ``pedal``."""
    shirt, trousers, skin = colours.cloth(rng), colours.cloth(rng), colours.one_of(rng, colours.SKIN)
    hip = np.array([seat[0], 0.0, seat[1] + 0.08])
    shoulder = hip + 0.55 * np.array([np.sin(lean), 0.0, np.cos(lean)])
    tilt = turned(lean, "y")
    torso = box((-0.12, 0.12), (-0.2, 0.2), (-0.08, 0.6)).moved(tilt, hip)
    parts = [Part("torso", torso, shirt)]
    turn = float(rng.uniform(0, np.pi))
    for side, phase in ((-1, turn), (1, turn + np.pi)):
        foot = (pedal[0] + 0.14 * float(np.cos(phase)), side * 0.14, pedal[2] + 0.12 * float(np.sin(phase)))
        knee = (hip[0] + 0.4, side * 0.15, 0.5 * (hip[2] + foot[2]) + 0.2)
        parts.append(Part("leg", rod((hip[0], side * 0.12, hip[2]), knee, 0.09, 0.075), trousers))
        parts.append(Part("leg", rod(knee, foot, 0.07, 0.05), trousers))
        start = (shoulder[0], side * 0.22, shoulder[2] - 0.05)
        parts.append(Part("arm", rod(start, (grip[0], side * 0.26, grip[2] + 0.03), 0.055, 0.045), shirt))
    head = (float(shoulder[0] + 0.06), 0.0, float(shoulder[2] + 0.22))
    if helmet:
        shell = colours.one_of(rng, (colours.WHITE, colours.DARK, (0.4, 0.03, 0.03), (0.05, 0.1, 0.3)))
        parts.append(Part("helmet", ball(head, (0.145, 0.13, 0.145)), shell, "paint"))
        parts.append(Part("face", ball((head[0] + 0.05, 0.0, head[2] - 0.03), (0.11, 0.08, 0.08)), skin))
    else:
        parts += _head(head, skin, colours.one_of(rng, ((0.02, 0.015, 0.01), (0.12, 0.07, 0.03))))
    return parts
