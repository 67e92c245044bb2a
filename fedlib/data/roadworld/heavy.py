"""Trucks, buses, trailers and construction vehicles."""

from __future__ import annotations

import numpy as np

from fedlib.data.roadworld import cars, colours
from fedlib.data.roadworld.solids import box, extrude, rod, turned
from fedlib.data.roadworld.world import Body, Colour, Part


def truck(rng: np.random.Generator) -> Body:
    """Draw a truck: pickup, box truck, open truck, tipper, or tractor with or without its semi-trailer."""
    style = ("pickup", "box", "open", "tipper", "tractor", "semi")[
        rng.choice(6, p=[0.16, 0.36, 0.16, 0.12, 0.06, 0.14])
    ]
    if style == "pickup":
        return cars.of_type("pickup", rng)
    scale = float(np.exp(0.08 * rng.normal()))
    half = float(np.clip(1.16 * np.sqrt(scale) + 0.03 * rng.normal(), 0.95, 1.28))
    cab_length = 1.75 * scale if style in ("box", "open") else 2.1
    cab_height = float(
        {"box": 2.35, "open": 2.3, "tipper": 2.75, "tractor": 3.2, "semi": 3.3}[style] * scale**0.5
    )
    load_length = float(
        {"box": rng.uniform(3.6, 7.2), "open": rng.uniform(3.4, 6.5), "tipper": rng.uniform(3.8, 5.2)}.get(
            style, 3.4
        )
    )
    deck, radius = 0.95 * scale**0.5, 0.46 * scale**0.5
    if style in ("tipper", "tractor", "semi"):
        deck, radius = 1.15, 0.52
    total = cab_length + 0.12 + load_length
    front = total / 2
    parts = _cab(front, half, cab_length, cab_height, 0.42, colours.paint(rng), rng)
    rear = -total / 2
    load_front = front - cab_length - 0.12
    parts.append(Part("frame", box((rear + 0.1, front - 0.4), (-0.45, 0.45), (0.55, deck)), colours.DARK))
    axles = [front - 0.62 * cab_length, rear + 0.85 + 0.1 * load_length]
    if style in ("tipper", "tractor", "semi"):
        axles.append(axles[-1] + 1.25)
    colour = colours.load(rng)
    if style == "box":
        top = float(rng.uniform(2.6, 3.7) * scale**0.5)
        parts.append(_cargo_box((rear, load_front), half + 0.03, (deck, max(top, cab_height + 0.1)), colour))
        parts += _doors(rear, half, deck, max(top, cab_height + 0.1))
    elif style == "open":
        parts.append(
            Part("deck", box((rear, load_front), (-half, half), (deck - 0.12, deck + 0.05)), colours.DARK)
        )
        parts += _sides(rear, load_front, half, deck, deck + float(rng.uniform(0.35, 0.6)), colour)
        if rng.random() < 0.6:
            top = deck + float(rng.uniform(0.6, 1.5))
            end = rear + float(rng.uniform(0.5, 0.95)) * load_length
            goods = colours.one_of(
                rng, ((0.3, 0.2, 0.1), (0.4, 0.38, 0.33), (0.1, 0.2, 0.35), (0.15, 0.15, 0.15))
            )
            parts.append(
                Part("load", box((rear + 0.2, end), (-half + 0.15, half - 0.15), (deck, top)), goods)
            )
    elif style == "tipper":
        top = float(rng.uniform(2.3, 2.9))
        tub = [
            (rear, deck + 0.5),
            (rear + 0.25, deck),
            (load_front, deck),
            (load_front + 0.05, top),
            (rear - 0.1, top),
        ]
        parts.append(
            Part("tub", extrude(tub, half * 0.95, half), colours.one_of(rng, (colours.YELLOW, colour)))
        )
        heap = extrude(
            [(rear + 0.3, top), (load_front - 0.3, top), (0.5 * (rear + load_front), top + 0.35)],
            half * 0.9,
            0.3,
        )
        parts.append(Part("heap", heap, (0.22, 0.16, 0.1), "leaves"))
    elif style == "semi":
        end = front - cab_length - 0.6 - float(rng.uniform(8.0, 11.5))
        top = float(rng.uniform(3.5, 4.0))
        parts.append(_cargo_box((end, front - cab_length - 0.6), 1.27, (1.15, top), colour))
        parts += _doors(end, 1.25, 1.15, top)
        axles += [end + 1.2, end + 2.5]
    else:
        parts.append(
            Part(
                "plate", rod((rear + 1.3, 0, deck), (rear + 1.3, 0, deck + 0.12), 0.5, sides=8), colours.DARK
            )
        )
    parts += cars.wheels(tuple(axles), half - 0.02, radius, 0.32)
    return _centred("truck", parts, style)


def bus(rng: np.random.Generator) -> Body:
    """Draw a bus: minibus, single or double deck."""
    style = ("single", "coach", "minibus", "double")[rng.choice(4, p=[0.45, 0.2, 0.2, 0.15])]
    length = float(
        {"single": 11.5, "coach": 12.2, "minibus": 7.0, "double": 10.9}[style] * np.exp(0.05 * rng.normal())
    )
    height = float(
        {"single": 3.05, "coach": 3.5, "minibus": 2.75, "double": 4.3}[style] * np.exp(0.025 * rng.normal())
    )
    half = 1.08 if style == "minibus" else 1.26
    front, back, sill = length / 2, -length / 2, 0.32
    base = colours.one_of(
        rng, (colours.WHITE, (0.45, 0.04, 0.04), (0.1, 0.28, 0.13), (0.7, 0.5, 0.08), (0.08, 0.17, 0.4))
    )
    second = colours.vary(rng, base) if rng.random() < 0.5 else colours.load(rng)
    profile = [
        (front - 0.05, sill),
        (front, 1.2),
        (front - 0.25, height),
        (back + 0.1, height),
        (back, 1.2),
        (back, sill),
    ]
    parts = [Part("body", extrude(profile, half, half * 0.96), base, "paint")]
    parts.append(
        Part(
            "skirt",
            box((back + 0.01, front - 0.04), (-half - 0.006, half + 0.006), (sill, 0.85)),
            second,
            "paint",
        )
    )
    decks = [(1.25, 2.2), (2.75, 3.75)] if style == "double" else [(0.42 * height, 0.77 * height)]
    for low, high in decks:
        band = box((back + 0.5, front - 0.25), (-half - 0.008, half + 0.008), (low, high))
        parts.append(Part("windows", band, colours.GLASS, "glass"))
        posts = int(rng.integers(4, 8))
        for x in np.linspace(back + 0.5, front - 0.3, posts + 1)[1:-1]:
            post = box((float(x) - 0.05, float(x) + 0.05), (-half - 0.012, half + 0.012), (low, high))
            parts.append(Part("post", post, base))
        parts.append(
            Part(
                "rear window",
                box((back - 0.01, back + 0.2), (-half * 0.8, half * 0.8), (low + 0.15, high)),
                colours.GLASS,
                "glass",
            )
        )
        lean = 0.25 * (high - 1.2) / (height - 1.2)
        pane = extrude(
            [
                (front - 0.5, low - 0.15),
                (front + 0.02, low - 0.15),
                (front - lean + 0.03, high + 0.05),
                (front - 0.5, high + 0.05),
            ],
            half * 0.9,
        )
        parts.append(Part("windscreen", pane, colours.GLASS, "glass"))
    sign = box((front - 0.4, front - 0.15), (-half * 0.7, half * 0.7), (height - 0.38, height - 0.08))
    parts.append(Part("sign", sign, (0.9, 0.45, 0.05) if rng.random() < 0.6 else colours.DARK, "lamp"))
    side = 1 if rng.random() < 0.5 else -1
    for x in (front - 1.6, back + 0.45 * length):
        y = sorted((side * (half - 0.1), side * (half + 0.014)))
        parts.append(
            Part("door", box((x, x + 1.1), (y[0], y[1]), (sill + 0.05, 2.2)), colours.GLASS, "glass")
        )
    for y0 in (-1, 1):
        y = sorted((y0 * half * 0.6, y0 * half * 0.92))
        parts.append(
            Part("lamp", box((front - 0.2, front + 0.02), (y[0], y[1]), (0.6, 0.8)), colours.LAMP, "lamp")
        )
        parts.append(
            Part(
                "tail lamp",
                box((back - 0.02, back + 0.1), (y[0], y[1]), (0.7, 1.05)),
                colours.RED_LAMP,
                "lamp",
            )
        )
    parts += cars.wheels((front - 0.22 * length, back + 0.27 * length), half + 0.01, 0.48, 0.3)
    return _centred("bus", parts, style)


def trailer(rng: np.random.Generator) -> Body:
    """Draw a trailer without its tractor: box or container on a chassis, flat bed, or tank."""
    style = ("box", "container", "flat", "tank", "small")[rng.choice(5, p=[0.34, 0.2, 0.16, 0.14, 0.16])]
    length = float(rng.uniform(2.8, 4.2) if style == "small" else rng.uniform(8.5, 13.0))
    half = 0.95 if style == "small" else 1.25
    deck = 0.6 if style == "small" else 1.2
    front, back = length / 2, -length / 2
    top = float(rng.uniform(1.4, 2.1) if style == "small" else rng.uniform(3.3, 4.0))
    colour = colours.load(rng)
    parts = [Part("chassis", box((back, front), (-0.5, 0.5), (deck - 0.3, deck)), colours.DARK)]
    if style in ("box", "small"):
        parts.append(_cargo_box((back, front), half, (deck, top), colour))
        parts += _doors(back, half, deck, top)
    elif style == "container":
        ribs = colours.vary(rng, colour, 0.1)
        parts.append(_cargo_box((back, front), half, (deck + 0.1, deck + 2.5), colour))
        for x in np.linspace(back + 0.4, front - 0.4, 8):
            rib = box(
                (float(x) - 0.07, float(x) + 0.07), (-half - 0.03, half + 0.03), (deck + 0.2, deck + 2.4)
            )
            parts.append(Part("rib", rib, colours.darker(ribs, 0.7)))
        parts += _doors(back, half, deck, deck + 2.5)
    elif style == "flat":
        parts.append(
            Part("deck", box((back, front), (-half, half), (deck - 0.05, deck + 0.12)), (0.2, 0.14, 0.09))
        )
        parts.append(Part("head board", box((front - 0.1, front), (-half, half), (deck, deck + 1.1)), colour))
        for _ in range(int(rng.integers(0, 3))):
            x = float(rng.uniform(back + 0.5, front - 3.0))
            goods = colours.one_of(rng, ((0.32, 0.22, 0.12), (0.4, 0.4, 0.4), (0.12, 0.2, 0.3)))
            parts.append(
                Part(
                    "load",
                    box((x, x + 2.4), (-half + 0.2, half - 0.2), (deck, deck + float(rng.uniform(0.5, 1.3)))),
                    goods,
                )
            )
    else:
        tank = rod((back + 0.2, 0, deck + 1.1), (front - 0.2, 0, deck + 1.1), 1.1, sides=12)
        parts.append(Part("tank", tank, colours.one_of(rng, (colours.CHROME, colours.WHITE)), "paint"))
    axles = (
        (0.0,) if style == "small" else tuple(back + 1.1 + 1.3 * k for k in range(int(rng.integers(2, 4))))
    )
    parts += cars.wheels(axles, half - 0.02, 0.33 if style == "small" else 0.5, 0.28)
    if style == "small":
        parts.append(
            Part("drawbar", rod((front, 0, 0.5), (front + 1.1, 0, 0.45), 0.06, sides=4), colours.DARK)
        )
    else:
        for side in (-1, 1):
            leg = box((front - 2.6, front - 2.4), (side * 0.8 - 0.08, side * 0.8 + 0.08), (0.05, deck))
            parts.append(Part("leg", leg, colours.STEEL))
        bar = box((back - 0.02, back + 0.1), (-1.1, 1.1), (0.5, 0.65))
        parts.append(Part("rear bar", bar, colours.one_of(rng, (colours.RED_LAMP, colours.DARK))))
    return _centred("trailer", parts, style)


def construction_vehicle(rng: np.random.Generator) -> Body:
    """Draw a construction vehicle: excavator, wheel loader, roller or forklift; mostly yellow or orange."""
    style = ("excavator", "loader", "roller", "forklift")[rng.choice(4, p=[0.42, 0.28, 0.16, 0.14])]
    paint = colours.one_of(
        rng, (colours.YELLOW, colours.YELLOW, (0.75, 0.22, 0.03), (0.6, 0.5, 0.1), (0.25, 0.3, 0.15))
    )
    scale = float(np.exp(0.12 * rng.normal()))
    builders = {"excavator": _excavator, "loader": _loader, "roller": _roller, "forklift": _forklift}
    parts = builders[style](paint, rng)
    parts = [Part(p.name, p.solid.scaled(scale), p.colour, p.finish) for p in parts]
    return _centred("construction_vehicle", parts, style)


def _cab(
    front: float,
    half: float,
    length: float,
    height: float,
    sill: float,
    paint: Colour,
    rng: np.random.Generator,
) -> list[Part]:
    """Cab of a truck over its engine: screen, side windows, lamps, bumper."""
    back, waist = front - length, sill + 0.5 * (height - sill)
    lean = 0.12 + 0.1 * float(rng.random())
    outline = [(front, sill), (front, waist), (front - lean, height), (back, height), (back, sill)]
    screen_low, screen_high = waist + 0.02, height - 0.3
    slope = lean / (height - waist)
    pane = [
        (front - 0.4, screen_low),
        (front + 0.015 - slope * (screen_low - waist), screen_low),
        (front + 0.015 - slope * (screen_high - waist), screen_high),
        (front - 0.4, screen_high),
    ]
    parts = [
        Part("cab", extrude(outline, half, half * 0.96), paint, "paint"),
        Part("windscreen", extrude(pane, half * 0.88), colours.GLASS, "glass"),
        Part(
            "side window",
            box(
                (front - 0.72 * length, front - 0.28),
                (-half * 0.995 - 0.012, half * 0.995 + 0.012),
                (waist + 0.05, height - 0.35),
            ),
            colours.GLASS,
            "glass",
        ),
        Part(
            "bumper",
            box((front - 0.3, front + 0.06), (-half, half), (sill - 0.05, sill + 0.3)),
            colours.one_of(rng, (colours.DARK, paint)),
        ),
        Part(
            "grille",
            box((front - 0.2, front + 0.012), (-half * 0.65, half * 0.65), (sill + 0.4, waist - 0.15)),
            colours.DARK,
        ),
    ]
    for side in (-1, 1):
        y = sorted((side * half * 0.6, side * half * 0.95))
        parts.append(
            Part(
                "lamp",
                box((front - 0.2, front + 0.07), (y[0], y[1]), (sill + 0.05, sill + 0.22)),
                colours.LAMP,
                "lamp",
            )
        )
        y = sorted((side * (half + 0.04), side * (half + 0.2)))
        parts.append(
            Part(
                "mirror",
                box((front - 0.1, front + 0.02), (y[0], y[1]), (waist + 0.2, waist + 0.75)),
                colours.DARK,
            )
        )
    return parts


def _cargo_box(x: tuple[float, float], half: float, z: tuple[float, float], colour: Colour) -> Part:
    return Part("cargo box", box(x, (-half, half), z), colour, "paint")


def _doors(x: float, half: float, low: float, high: float) -> list[Part]:
    """Frame, gap and lamps at the rear end of a cargo box."""
    parts = [
        Part("door gap", box((x - 0.012, x + 0.02), (-0.03, 0.03), (low + 0.1, high - 0.1)), colours.DARK),
        Part("rear sill", box((x - 0.02, x + 0.1), (-half, half), (low - 0.15, low + 0.02)), colours.DARK),
    ]
    for side in (-1, 1):
        y = sorted((side * half * 0.7, side * half * 0.95))
        parts.append(
            Part(
                "tail lamp",
                box((x - 0.03, x + 0.05), (y[0], y[1]), (low - 0.14, low)),
                colours.RED_LAMP,
                "lamp",
            )
        )
    return parts


def _sides(back: float, front: float, half: float, low: float, high: float, colour: Colour) -> list[Part]:
    """Four boards around an open deck."""
    parts = [
        Part("board", box((x - 0.05, x + 0.05), (-half, half), (low, high)), colour)
        for x in (back + 0.05, front - 0.05)
    ]
    parts += [
        Part("board", box((back, front), (y - 0.04, y + 0.04), (low, high)), colour)
        for y in (-half + 0.04, half - 0.04)
    ]
    return parts


def _excavator(paint: Colour, rng: np.random.Generator) -> list[Part]:
    parts = []
    for side in (-1, 1):
        track = extrude(
            [(-1.9, 0.35), (-1.6, 0.0), (1.6, 0.0), (1.9, 0.35), (1.6, 0.8), (-1.6, 0.8)], 0.3, y=side * 1.1
        )
        parts.append(Part("track", track, colours.TYRE))
    swing = turned(float(rng.uniform(-0.9, 0.9)))
    upper = [
        Part(
            "house",
            extrude([(-2.0, 1.0), (0.9, 1.0), (0.9, 1.7), (-1.6, 2.0), (-2.0, 1.9)], 1.25),
            paint,
            "paint",
        ),
        Part("cab", extrude([(0.0, 1.0), (1.3, 1.0), (1.15, 2.7), (0.0, 2.8)], 0.5, y=0.7), paint, "paint"),
        Part(
            "cab glass",
            extrude([(0.15, 1.7), (1.32, 1.5), (1.17, 2.6), (0.15, 2.65)], 0.515, y=0.7),
            colours.GLASS,
            "glass",
        ),
    ]
    elbow = (float(rng.uniform(2.6, 3.2)), -0.3, float(rng.uniform(3.3, 4.1)))
    wrist = (float(elbow[0] + rng.uniform(0.6, 1.7)), -0.3, float(rng.uniform(0.8, 1.7)))
    upper.append(Part("boom", rod((0.8, -0.3, 1.6), elbow, 0.36, 0.26, sides=4), paint, "paint"))
    upper.append(Part("arm", rod(elbow, wrist, 0.25, 0.18, sides=4), paint, "paint"))
    scoop = [
        (wrist[0] - 0.8, wrist[2] - 0.5),
        (wrist[0] - 0.1, wrist[2] - 0.75),
        (wrist[0] + 0.3, wrist[2] - 0.2),
        (wrist[0], wrist[2] + 0.15),
    ]
    upper.append(Part("bucket", extrude(scoop, 0.5, y=-0.3), colours.DARK))
    parts += [Part(p.name, p.solid.moved(swing, np.zeros(3)), p.colour, p.finish) for p in upper]
    return parts


def _loader(paint: Colour, rng: np.random.Generator) -> list[Part]:
    lift = float(rng.uniform(0.3, 1.4))
    parts = [
        Part("engine", extrude([(-2.7, 0.8), (-0.3, 0.8), (-0.3, 1.9), (-2.5, 1.75)], 0.8), paint, "paint"),
        Part("front frame", box((-0.3, 1.9), (-0.6, 0.6), (0.7, 1.4)), paint, "paint"),
        Part("cab", extrude([(-0.9, 1.4), (0.6, 1.4), (0.45, 3.1), (-0.9, 3.1)], 0.7), paint, "paint"),
        Part(
            "cab glass",
            extrude([(-0.75, 2.0), (0.62, 1.8), (0.48, 2.95), (-0.75, 2.95)], 0.715),
            colours.GLASS,
            "glass",
        ),
    ]
    for side in (-1, 1):
        parts.append(
            Part(
                "arm",
                rod((0.6, side * 0.55, 1.6), (2.7, side * 0.55, lift + 0.4), 0.16, sides=4),
                paint,
                "paint",
            )
        )
    bucket = [(2.4, lift + 0.9), (2.4, lift), (3.5, lift), (2.9, lift + 0.5)]
    parts.append(Part("bucket", extrude(bucket, 1.25), colours.one_of(rng, (colours.DARK, paint))))
    return parts + cars.wheels((1.4, -1.5), 1.2, 0.72, 0.5, paint)


def _roller(paint: Colour, rng: np.random.Generator) -> list[Part]:
    parts = [
        Part("drum", rod((1.4, -0.95, 0.65), (1.4, 0.95, 0.65), 0.65, sides=14), colours.STEEL),
        Part("yoke", box((0.2, 1.5), (-1.08, 1.08), (0.75, 1.05)), paint, "paint"),
        Part("body", extrude([(-2.0, 0.7), (0.3, 0.7), (0.3, 1.5), (-1.9, 1.6)], 0.85), paint, "paint"),
        Part("roof", box((-1.0, 0.5), (-0.8, 0.8), (2.6, 2.72)), paint, "paint"),
    ]
    for x in (-0.9, 0.4):
        for y in (-0.7, 0.7):
            parts.append(
                Part("post", box((x - 0.04, x + 0.04), (y - 0.04, y + 0.04), (1.4, 2.65)), colours.DARK)
            )
    if rng.random() < 0.6:
        parts.append(Part("driver", box((-0.6, -0.25), (-0.22, 0.22), (1.5, 2.3)), (0.6, 0.4, 0.05)))
    return parts + cars.wheels((-1.3,), 0.95, 0.65, 0.45, paint)


def _forklift(paint: Colour, rng: np.random.Generator) -> list[Part]:
    lift = float(rng.uniform(0.1, 0.9))
    parts = [
        Part("body", extrude([(-1.3, 0.25), (0.7, 0.25), (0.7, 0.9), (-1.3, 1.15)], 0.62), paint, "paint"),
        Part("guard", box((-0.9, 0.55), (-0.6, 0.6), (2.1, 2.2)), colours.DARK),
        Part("seat", box((-0.5, -0.1), (-0.25, 0.25), (1.0, 1.6)), colours.DARK),
    ]
    for y in (-0.5, 0.5):
        parts += [
            Part("mast", box((0.75, 0.88), (y - 0.07, y + 0.07), (0.1, 2.35)), colours.DARK),
            Part(
                "fork", box((0.88, 1.9), (0.6 * y - 0.06, 0.6 * y + 0.06), (lift, lift + 0.06)), colours.STEEL
            ),
            Part("post", box((-0.9, -0.82), (y - 0.04, y + 0.04), (1.0, 2.15)), colours.DARK),
            Part("post", box((0.45, 0.53), (y - 0.04, y + 0.04), (0.9, 2.15)), colours.DARK),
        ]
    if rng.random() < 0.4:
        parts.append(
            Part("load", box((0.9, 1.8), (-0.5, 0.5), (lift + 0.06, lift + 0.9)), (0.36, 0.25, 0.13))
        )
    return parts + cars.wheels((0.4, -0.9), 0.64, 0.32, 0.22)


def _centred(kind: str, parts: list[Part], style: str) -> Body:
    """Put the middle of the annotated box over the origin."""
    corners = np.concatenate([part.solid.corners for part in parts])
    middle = 0.5 * (corners.min(axis=0) + corners.max(axis=0))
    shift = np.array([-middle[0], -middle[1], 0.0])
    still = np.eye(3)
    return Body(kind, [Part(p.name, p.solid.moved(still, shift), p.colour, p.finish) for p in parts], style)
