"""Cars and light vehicles: one body of a lower part, a glass house, a roof and wheels, in many proportions."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from fedlib.data.roadworld import colours
from fedlib.data.roadworld.solids import box, extrude, rod
from fedlib.data.roadworld.world import Body, Colour, Part


@dataclass(frozen=True)
class Shape:
    """Proportions of a car. Lengths in metres; the rest in parts of length (along) or height (up).

    Attributes:
        length: bumper to bumper.
        width: without mirrors.
        height: road to roof.
        wheelbase: axle to axle / length.
        overhang: front bumper to front axle / length.
        bonnet: front bumper to the foot of the windscreen / length.
        screen: horizontal extent of the windscreen / length.
        rear: horizontal extent of the rear window / length.
        boot: what is behind the foot of the rear window / length.
        belt: height of the lower edge of the side windows / height.
        nose: height of the front edge of the bonnet / height.
        tail: height of the rear edge of the boot / height.
        clearance: road to sill / height.
        wheel: diameter of the wheels / height.
        inset: how much narrower the roof is than the sill / width.
    """

    length: float
    width: float
    height: float
    wheelbase: float
    overhang: float
    bonnet: float
    screen: float
    rear: float
    boot: float
    belt: float = 0.62
    nose: float = 0.50
    tail: float = 0.60
    clearance: float = 0.13
    wheel: float = 0.44
    inset: float = 0.22

    def drawn(self, rng: np.random.Generator, spread: float = 0.04) -> Shape:
        """Return proportions around these: each value times exp(N(0, spread)), one scale for all of the size."""
        values = {f.name: getattr(self, f.name) * float(np.exp(spread * rng.normal())) for f in fields(self)}
        return Shape(**values)


#: Body types: the classes of the coarse task, and the variety of cars on the road.
BODY_TYPES: dict[str, Shape] = {
    "sedan": Shape(4.70, 1.83, 1.45, 0.580, 0.190, 0.27, 0.15, 0.14, 0.150),
    "hatchback": Shape(4.05, 1.76, 1.50, 0.625, 0.195, 0.24, 0.16, 0.075, 0.015, tail=0.60),
    "SUV": Shape(4.65, 1.90, 1.74, 0.585, 0.190, 0.25, 0.12, 0.070, 0.012, 0.60, 0.56, 0.6, 0.17, 0.43, 0.17),
    "MPV": Shape(
        4.75, 1.87, 1.77, 0.615, 0.190, 0.16, 0.20, 0.045, 0.012, 0.56, 0.46, 0.56, 0.11, 0.38, 0.18
    ),
    "van": Shape(
        5.30, 2.00, 2.25, 0.600, 0.185, 0.13, 0.13, 0.012, 0.006, 0.54, 0.43, 0.54, 0.11, 0.31, 0.10
    ),
    "pickup": Shape(
        5.30, 1.90, 1.82, 0.600, 0.175, 0.22, 0.11, 0.030, 0.360, 0.59, 0.54, 0.57, 0.17, 0.43, 0.16
    ),
    "sports car": Shape(
        4.45, 1.88, 1.26, 0.590, 0.205, 0.33, 0.19, 0.200, 0.080, 0.64, 0.44, 0.64, 0.10, 0.51, 0.30
    ),
}

#: Sedans that differ in proportions only: the classes of the fine task.
SEDANS: dict[str, Shape] = {
    "micro sedan": Shape(3.70, 1.62, 1.51, 0.630, 0.180, 0.210, 0.165, 0.125, 0.095, wheel=0.38),
    "small sedan": Shape(4.30, 1.72, 1.48, 0.595, 0.190, 0.235, 0.155, 0.130, 0.140, wheel=0.41),
    "mid-size sedan": Shape(4.80, 1.84, 1.45, 0.585, 0.190, 0.265, 0.150, 0.140, 0.165, wheel=0.45),
    "executive sedan": Shape(5.05, 1.90, 1.46, 0.595, 0.170, 0.310, 0.130, 0.125, 0.150, wheel=0.48),
    "long-wheelbase sedan": Shape(5.50, 1.90, 1.49, 0.640, 0.165, 0.260, 0.115, 0.095, 0.120, wheel=0.46),
    "sport sedan": Shape(4.85, 1.90, 1.36, 0.605, 0.180, 0.300, 0.175, 0.225, 0.070, wheel=0.51),
}

#: How often each body type is met on the road; pickups are trucks in nuScenes.
_ON_THE_ROAD = {"sedan": 0.32, "hatchback": 0.2, "SUV": 0.24, "MPV": 0.1, "van": 0.1, "sports car": 0.04}


def car(rng: np.random.Generator) -> Body:
    """Draw a car of the nuScenes class ``car``."""
    styles = list(_ON_THE_ROAD)
    style = styles[rng.choice(len(styles), p=np.array(list(_ON_THE_ROAD.values())))]
    return of_type(style, rng)


def of_type(style: str, rng: np.random.Generator) -> Body:
    """Draw a car of one of ``BODY_TYPES``."""
    panels = style == "van" and rng.random() < 0.6
    kind = "truck" if style == "pickup" else "car"
    shape = BODY_TYPES[style].drawn(rng)
    return build(shape, colours.paint(rng), rng, kind, style, bed=style == "pickup", panels=panels)


def sedan(style: str, rng: np.random.Generator) -> Body:
    """Draw a sedan of one of ``SEDANS``."""
    return build(SEDANS[style].drawn(rng, 0.025), colours.paint(rng), rng, "car", style)


def wheels(
    axles: tuple[float, ...], half_width: float, radius: float, thickness: float, rim: Colour = colours.STEEL
) -> list[Part]:
    """Return a wheel with its hub at both ends of every axle, standing on the road.

    Args:
        axles: x of each axle, metres.
        half_width: y of the outer side of the wheels.
        radius: of the wheels.
        thickness: of the wheels along y.
        rim: colour of the hubs.
    """
    parts = []
    for x in axles:
        for side in (-1, 1):
            inner, outer = side * (half_width - thickness), side * half_width
            parts.append(
                Part("wheel", rod((x, inner, radius), (x, outer, radius), radius, sides=10), colours.TYRE)
            )
            hub = rod(
                (x, outer - 0.03 * side, radius), (x, outer + 0.012 * side, radius), 0.58 * radius, sides=8
            )
            parts.append(Part("hub", hub, rim, "paint"))
    return parts


def build(
    shape: Shape,
    body_paint: Colour,
    rng: np.random.Generator,
    kind: str,
    style: str,
    *,
    bed: bool = False,
    panels: bool = False,
) -> Body:
    """Build a car from its proportions.

    Args:
        shape: proportions.
        body_paint: colour of the sheet metal.
        rng: decides details that carry no class: trim, lamps, rims.
        kind: nuScenes class.
        style: kept as ``Body.style``.
        bed: an open bed behind the cab (pickup).
        panels: no side windows behind the front doors (panel van).
    """
    length, half, height = shape.length, shape.width / 2, shape.height
    front, back = length / 2, -length / 2
    sill, belt = shape.clearance * height, shape.belt * height
    nose, tail = min(shape.nose * height, belt - 0.02), min(shape.tail * height, belt)
    cowl = front - shape.bonnet * length
    roof_front = cowl - shape.screen * length
    rear_foot = back + max(shape.boot * length, 0.05)
    roof_back = min(rear_foot + shape.rear * length, roof_front - 0.3)
    radius = shape.wheel * height / 2
    front_axle = front - shape.overhang * length
    rear_axle = max(front_axle - shape.wheelbase * length, back + 1.05 * radius)
    top = half * (1 - shape.inset)

    hull = [
        (front - 0.04, sill),
        (front, 0.5 * (sill + nose)),
        (front - 0.06, nose),
        (cowl, belt),
        (rear_foot, belt),
        (back + 0.04, tail),
        (back, 0.6 * sill + 0.4 * tail),
        (back + 0.06, sill),
    ]
    parts = [Part("body", extrude(hull, half, half * 0.96), body_paint, "paint")]
    house = [
        (cowl, belt - 0.02),
        (roof_front, height - 0.03),
        (roof_back, height - 0.03),
        (rear_foot, belt - 0.02),
    ]
    parts.append(Part("windows", extrude(house, half * 0.955, top * 0.99), colours.GLASS, "glass"))
    edge = 0.1
    roof = [
        (roof_front + 0.08, height - 0.07),
        (roof_front - edge, height),
        (roof_back + edge, height),
        (roof_back - 0.05, height - 0.07),
    ]
    parts.append(Part("roof", extrude(roof, top * 1.02, top * 0.96), body_paint, "paint"))

    def pillar(x: float, wide: float, shift: float = 0.0) -> Part:
        """A post from the belt to the roof on both sides, ``shift`` further back at the top."""
        profile = [
            (x - wide, belt - 0.02),
            (x + wide, belt - 0.02),
            (x + wide - shift, height - 0.04),
            (x - wide - shift, height - 0.04),
        ]
        return Part("pillar", extrude(profile, half * 0.965, top * 1.005), body_paint, "paint")

    if panels:
        profile = [
            (cowl - 0.42 * (cowl - rear_foot), belt - 0.03),
            (roof_front - 0.30 * (roof_front - roof_back), height - 0.02),
            (roof_back - 0.01, height - 0.02),
            (rear_foot - 0.02, belt - 0.03),
        ]
        parts.append(Part("panel", extrude(profile, half * 0.97, top * 1.01), body_paint, "paint"))
    else:
        middle = 0.5 * (roof_front + roof_back) + 0.04 * length
        parts.append(pillar(middle, 0.045))
        if not bed:
            parts.append(pillar(rear_foot + 0.03, 0.05, rear_foot - roof_back))
    parts.append(pillar(cowl - 0.02, 0.03, cowl - roof_front))
    if bed:
        inside = box((back + 0.08, rear_foot - 0.05), (-half + 0.1, half - 0.1), (belt - 0.25, belt + 0.012))
        parts.append(Part("bed", inside, colours.DARK))
        parts.append(
            Part(
                "cab wall", box((rear_foot, rear_foot + 0.06), (-top, top), (belt, height - 0.05)), body_paint
            )
        )

    trim = colours.DARK if rng.random() < 0.7 else body_paint
    parts.append(
        Part(
            "sill",
            box((back + 0.1, front - 0.1), (-half * 0.99, half * 0.99), (0.8 * sill, sill + 0.05)),
            trim,
        )
    )
    for x, inside_x in ((front, -0.10), (back, 0.10)):
        low, high = sorted((x + 0.2 * inside_x, x + 4 * inside_x))
        bumper = box((low, high), (-half * 0.9, half * 0.9), (sill, sill + 0.14))
        parts.append(Part("bumper", bumper, trim))
    for side in (-1, 1):
        for x in (front_axle, rear_axle):
            low, high = side * (half - 0.2), side * (half + 0.004)
            arch = rod((x, low, 1.22 * radius), (x, high, 1.22 * radius), 1.16 * radius, sides=10)
            parts.append(Part("arch", arch, (0.012, 0.012, 0.012)))
        y = sorted((side * half * 0.58, side * half * 0.94))
        low = 0.45 * sill + 0.55 * nose
        parts.append(
            Part(
                "lamp",
                box((front - 0.28, front + 0.01), (y[0], y[1]), (low, low + 0.13)),
                colours.LAMP,
                "lamp",
            )
        )
        low = 0.35 * sill + 0.65 * tail
        parts.append(
            Part(
                "tail lamp",
                box((back - 0.01, back + 0.2), (y[0], y[1]), (low, low + 0.13)),
                colours.RED_LAMP,
                "lamp",
            )
        )
        mirror = sorted((side * half * 0.93, side * (half + 0.14)))
        parts.append(
            Part("mirror", box((cowl - 0.32, cowl - 0.2), (mirror[0], mirror[1]), (belt, belt + 0.13)), trim)
        )
    grille = colours.one_of(rng, (colours.DARK, colours.DARK, colours.CHROME))
    low = 0.62 * sill + 0.38 * nose
    parts.append(
        Part(
            "grille", box((front - 0.1, front + 0.012), (-half * 0.5, half * 0.5), (low, low + 0.16)), grille
        )
    )
    plate = (0.40 * sill + 0.60 * tail) if rng.random() < 0.6 else sill + 0.1
    parts.append(
        Part(
            "plate",
            box((back - 0.015, back + 0.1), (-0.26, 0.26), (plate - 0.06, plate + 0.06)),
            colours.PLATE,
        )
    )
    rim = colours.one_of(rng, (colours.STEEL, colours.CHROME, colours.DARK))
    parts += wheels((front_axle, rear_axle), half + 0.012, radius, 0.2, rim)
    return Body(kind, parts, style)
