"""Grey pictures out of DICOM files, through the package pydicom, which is an optional extra."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from fedlib.errors import InputError


def require() -> None:
    """Raise an InputError that says what to install if DICOM files cannot be read here."""
    if importlib.util.find_spec("pydicom") is None:
        raise InputError(
            "DICOM files need the package pydicom, which is not installed. Install it "
            "(pip install 'fedlib[dicom]'), or convert the pictures to PNG files of the same names"
        )


def read(path: Path) -> np.ndarray:
    """Return the picture (H, W) as uint8, the full range of its stored bits scaled to 0 to 255; bright is dense.

    Raises:
        InputError: pydicom is not installed.
        ValueError: the file is damaged, has no single grey picture, or is compressed in a way that is not known.
    """
    require()
    import pydicom  # optional: only here is it needed
    from pydicom.errors import InvalidDicomError

    try:
        with pydicom.dcmread(path) as file:
            pixels, bits = file.pixel_array, int(file.BitsStored)
            inverted = file.PhotometricInterpretation == "MONOCHROME1"
            lowest = -(2 ** (bits - 1)) if int(file.PixelRepresentation) else 0
    except (InvalidDicomError, AttributeError, NotImplementedError, RuntimeError, KeyError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if pixels.ndim != 2:
        raise ValueError(f"pixels have shape {pixels.shape}; allowed: one grey picture")
    share = (pixels.astype(np.float32) - lowest) / (2**bits - 1)
    return np.clip((1 - share if inverted else share) * 255 + 0.5, 0, 255).astype(np.uint8)
