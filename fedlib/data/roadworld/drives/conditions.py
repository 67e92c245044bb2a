"""What differs between the domains: city, light and weather, as numbers. All of the domain shift is in this file.

The numbers were set once from what the conditions are in nuScenes (side of driving, mix of road users, twice the
cars in Boston, three times the motorcycles in Singapore), not from the scores of any method.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedlib.data.nuscenes.domains import DOMAINS, Domain


@dataclass(frozen=True)
class City:
    """A place.

    Attributes:
        locations: of logs, as in nuScenes.
        side: +1 where one drives on the left (oncoming traffic at y < 0), -1 where one drives on the right.
        lane: width of a lane, metres.
        building: nearest and farthest front of a building from the road's axis, metres.
        trees: mean number of trees on each side of 100 m.
        scale: factor on the length and width of vehicles.
        mix: mean number of road users of each class in the stretch of a scene.
        zenith: colour of the day's sky overhead; horizon: at the horizon.
        horizon: see zenith.
        road: albedo of the road; beside: of the pavement; line: of the lines.
        beside: see road.
        line: see road.
        paint: factors on red, green and blue of every vehicle's paint.
        reflectance: factor on the LiDAR intensity of vehicles.
        lidar_height: of the LiDAR above the road, metres.
        pitch: of all cameras, radians, positive looks down.
    """

    locations: tuple[str, ...]
    side: int
    lane: float
    building: tuple[float, float]
    trees: float
    scale: float
    mix: dict[str, float]
    zenith: tuple[float, float, float]
    horizon: tuple[float, float, float]
    road: tuple[float, float, float]
    beside: tuple[float, float, float]
    line: tuple[float, float, float]
    paint: tuple[float, float, float]
    reflectance: float
    lidar_height: float
    pitch: float


CITIES = {
    "boston": City(
        locations=("boston-seaport",),
        side=-1,
        lane=3.6,
        building=(13.0, 22.0),
        trees=3.0,
        scale=1.06,
        mix={
            "car": 6.0,
            "truck": 1.4,
            "bus": 0.5,
            "trailer": 0.7,
            "construction_vehicle": 0.7,
            "pedestrian": 2.5,
            "motorcycle": 0.5,
            "bicycle": 0.7,
            "traffic_cone": 1.6,
            "barrier": 2.0,
        },
        zenith=(0.26, 0.36, 0.55),
        horizon=(0.62, 0.68, 0.76),
        road=(0.11, 0.11, 0.115),
        beside=(0.28, 0.27, 0.25),
        line=(0.55, 0.55, 0.53),
        paint=(1.0, 1.0, 1.0),
        reflectance=1.0,
        lidar_height=1.84,
        pitch=0.0,
    ),
    "singapore": City(
        locations=("singapore-onenorth", "singapore-queenstown", "singapore-hollandvillage"),
        side=1,
        lane=3.1,
        building=(10.0, 15.5),
        trees=10.0,
        scale=0.95,
        mix={
            "car": 3.0,
            "truck": 1.0,
            "bus": 0.8,
            "trailer": 0.4,
            "construction_vehicle": 0.5,
            "pedestrian": 3.0,
            "motorcycle": 1.6,
            "bicycle": 0.9,
            "traffic_cone": 1.2,
            "barrier": 1.2,
        },
        zenith=(0.6, 0.62, 0.63),
        horizon=(0.85, 0.86, 0.84),
        road=(0.075, 0.09, 0.083),
        beside=(0.1, 0.15, 0.06),
        line=(0.5, 0.36, 0.06),
        paint=(1.05, 0.95, 0.7),
        reflectance=0.75,
        lidar_height=1.95,
        pitch=0.035,
    ),
}

#: Classes that do not occur: one, three and six of ten in C, D and E, as in the paper (Section IV-D), which does
#: not say which ones.
ABSENT = {
    "A": (),
    "B": (),
    "C": ("trailer",),
    "D": ("trailer", "construction_vehicle", "traffic_cone"),
    "E": ("trailer", "construction_vehicle", "traffic_cone", "bus", "bicycle", "barrier"),
}


@dataclass(frozen=True)
class Night:
    """Light after dark, in units of the white light of an overcast day.

    Attributes:
        ambient: what is left everywhere.
        beam: the car's headlights at 10 m straight ahead.
        spread: half angle of the headlights, radians.
        street: light below a street lamp, one every ``spacing`` metres.
        spacing: see street.
        lamps: what the lamps of vehicles give off.
        noise: of the camera's sensor, at full scale and in the dark.
    """

    ambient: float = 0.05
    beam: float = 0.55
    spread: float = 0.42
    street: float = 0.14
    spacing: float = 28.0
    lamps: float = 0.5
    noise: float = 0.05


@dataclass(frozen=True)
class Rain:
    """What rain does to LiDAR and cameras.

    Attributes:
        ground: share of returns from the wet ground that are lost.
        near: share of other returns that are lost at the sensor, ``far`` more at ``range`` metres and beyond.
        far: see near.
        range: farthest return, metres.
        spurious: share of beams that drops send back.
        intensity: factor on intensities.
        noise: factor on the noise of ranges.
        blur: standard deviation of the cameras' blur, share of the picture's width.
        contrast: factor on the pictures' contrast.
        veil: light added to it, in parts of the mean of the picture.
        streaks: drops' streaks in a picture.
        haze: distance in metres at which half of the contrast is gone.
    """

    ground: float = 0.75
    near: float = 0.25
    far: float = 0.5
    range: float = 26.0
    spurious: float = 0.05
    intensity: float = 0.55
    noise: float = 2.0
    blur: float = 0.011
    contrast: float = 0.75
    veil: float = 0.2
    streaks: int = 25
    haze: float = 40.0


NIGHT, RAIN = Night(), Rain()
DRY_RANGE, DRY_HAZE = 60.0, 500.0
DROPOUT = 0.03  # share of returns that are lost in any weather
RANGE_NOISE = 0.02  # metres


def city_of(domain: Domain) -> City:
    """Return the place of a domain."""
    return CITIES[domain.city]


def mix_of(domain: Domain) -> dict[str, float]:
    """Return the mean number of road users of each class that occurs in a domain."""
    absent = ABSENT[domain.letter]
    return {kind: mean for kind, mean in city_of(domain).mix.items() if kind not in absent}


def about() -> tuple[str, ...]:
    """Return sentences on the shift for the data card."""
    boston, singapore = CITIES["boston"], CITIES["singapore"]
    absent = "; ".join(f"{key}: {', '.join(names)}" for key, names in ABSENT.items() if names)
    return (
        f"Boston against Singapore: traffic on the right or left, lanes of {boston.lane} or {singapore.lane} m, "
        f"vehicles scaled by {boston.scale} or {singapore.scale}, other paint, road, lines, sky and vegetation, "
        f"LiDAR at {boston.lidar_height} or {singapore.lidar_height} m, cameras pitched by {boston.pitch} or "
        f"{singapore.pitch} rad, LiDAR intensity of vehicles times {boston.reflectance} or "
        f"{singapore.reflectance}.",
        f"Night (D, E): {NIGHT.ambient:.0%} of the daylight, headlights, street lamps, camera noise; LiDAR "
        "unchanged.",
        f"Rain (B, E): {RAIN.ground:.0%} of ground returns and {RAIN.near:.0%} to {RAIN.near + RAIN.far:.0%} of "
        f"the others lost, range {RAIN.range:.0f} instead of {DRY_RANGE:.0f} m, {RAIN.spurious:.0%} spurious near "
        "returns, weaker intensity; pictures blurred, hazy, with less contrast and streaks.",
        f"Classes that do not occur: {absent}.",
        "The shift was set from the conditions, never from the scores of a method.",
    )


assert set(ABSENT) == set(DOMAINS)
