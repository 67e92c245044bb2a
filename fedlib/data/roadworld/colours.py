"""Colours of things, as albedo in linear light, and how often they occur."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedlib.data.roadworld.world import Colour

GLASS: Colour = (0.035, 0.045, 0.055)
TYRE: Colour = (0.025, 0.025, 0.027)
DARK: Colour = (0.05, 0.05, 0.055)
STEEL: Colour = (0.35, 0.36, 0.38)
CHROME: Colour = (0.55, 0.56, 0.58)
LAMP: Colour = (0.85, 0.85, 0.8)
RED_LAMP: Colour = (0.45, 0.02, 0.02)
PLATE: Colour = (0.7, 0.7, 0.62)
ORANGE: Colour = (0.85, 0.19, 0.03)
WHITE: Colour = (0.75, 0.75, 0.73)
YELLOW: Colour = (0.75, 0.42, 0.03)
SKIN: tuple[Colour, ...] = ((0.55, 0.36, 0.27), (0.42, 0.25, 0.17), (0.25, 0.14, 0.09), (0.12, 0.07, 0.05))

# shares after public statistics of new cars by colour: mostly white, black, grey and silver
_PAINTS: tuple[tuple[float, Colour], ...] = (
    (0.26, (0.72, 0.72, 0.70)),
    (0.19, (0.02, 0.02, 0.022)),
    (0.16, (0.14, 0.145, 0.15)),
    (0.14, (0.42, 0.43, 0.44)),
    (0.09, (0.04, 0.09, 0.26)),
    (0.07, (0.36, 0.03, 0.03)),
    (0.04, (0.28, 0.22, 0.15)),
    (0.03, (0.05, 0.15, 0.09)),
    (0.02, (0.62, 0.42, 0.05)),
)
_LOADS: tuple[tuple[float, Colour], ...] = (
    (0.45, (0.72, 0.72, 0.70)),
    (0.15, (0.42, 0.43, 0.44)),
    (0.12, (0.05, 0.12, 0.35)),
    (0.10, (0.42, 0.05, 0.04)),
    (0.08, (0.10, 0.26, 0.14)),
    (0.10, (0.45, 0.28, 0.12)),
)


def paint(rng: np.random.Generator) -> Colour:
    """Draw the paint of a car."""
    return _draw(rng, _PAINTS)


def load(rng: np.random.Generator) -> Colour:
    """Draw the colour of a cargo box, container or tarpaulin."""
    return _draw(rng, _LOADS)


def cloth(rng: np.random.Generator) -> Colour:
    """Draw the colour of a piece of clothing: any hue, mostly dull, dark to light."""
    grey = 0.03 + 0.6 * rng.random() ** 2
    tint = rng.random(3) - 0.5
    strength = 0.8 * rng.random() ** 2
    return vary(rng, tuple(float(grey * (1 + 2 * strength * t)) for t in tint), 0.1)


def one_of(rng: np.random.Generator, choices: Sequence[Colour]) -> Colour:
    """Draw one of some colours, with a little variation."""
    return vary(rng, choices[rng.integers(len(choices))])


def vary(rng: np.random.Generator, colour: Sequence[float], spread: float = 0.15) -> Colour:
    """Return the colour, lighter or darker, and a little towards another hue."""
    factors = np.clip((1 + spread * rng.normal()) * (1 + 0.4 * spread * rng.normal(size=3)), 0.4, 1.8)
    red, green, blue = (float(min(0.9, c * f)) for c, f in zip(colour, factors))
    return red, green, blue


def darker(colour: Colour, factor: float) -> Colour:
    """Return the colour times a factor."""
    return colour[0] * factor, colour[1] * factor, colour[2] * factor


def _draw(rng: np.random.Generator, table: Sequence[tuple[float, Colour]]) -> Colour:
    shares = np.array([share for share, _ in table])
    return vary(rng, table[rng.choice(len(table), p=shares / shares.sum())][1])
