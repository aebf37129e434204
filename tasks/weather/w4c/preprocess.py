"""Numbers in Weather4cast files: channels, their normalisation, and which radar pixels count as rain.

The constants are those of the competition's kit (2022, second stage), computed on its core regions; they hold for any
data set of the same instrument, so they are part of the code and not of a data set.
"""

from __future__ import annotations

import numpy as np

from retable.platform.spec.arrays import Array

_STATISTICS = {
    "IR_016": (0.06605569, 0.09920627, 1.02),
    "IR_039": (273.2187, 15.98847, 350.0),
    "IR_087": (268.3977, 17.49075, 350.0),
    "IR_097": (246.1366, 10.81174, 350.0),
    "IR_108": (270.1535, 18.49373, 350.0),
    "IR_120": (268.7993, 18.42736, 350.0),
    "IR_134": (250.6491, 11.70623, 350.0),
    "VIS006": (0.06711527, 0.1101766, 1.02),
    "VIS008": (0.08736397, 0.1326554, 1.2),
    "WV_062": (232.1964, 5.531017, 300.0),
    "WV_073": (248.0414, 9.495061, 300.0),
}
"""Mean, standard deviation and highest value of each channel."""

CHANNELS = tuple(_STATISTICS)
"""SEVIRI channels in the order of the files. IR_016 and VIS are reflectances, the others brightness temperatures, K."""
MEAN, STD, HIGH = np.array(list(_STATISTICS.values()), np.float32).T.copy()
LOW = np.zeros(11, np.float32)
"""Values below `LOW` and above `HIGH` are cut off."""

UNDETECTED = -8888000.0
"""Radar saw no echo: dry."""
MISSING = -9999000.0
"""Radar saw nothing: unknown."""
HIGHEST_RATE = 128.0
"""mm/h; what is above is a fault of the radar."""

RAIN, MASKED = 1, 2
"""Events; 0 is dry."""


def normalise(satellite: Array, copy: bool = True) -> Array:
    """Satellite images (..., 11, height, width) with mean 0 and standard deviation 1 in each channel, float32.

    Missing values (infinite, not a number) become 0 first, as in the kit: brightness temperatures of 0 K, some 17
    standard deviations low, which a network can tell from any cloud. Every number depends on itself alone, so batches
    may be split anywhere. Without `copy`, float32 images in C order are changed in place.
    """
    shape = (len(CHANNELS), 1, 1)
    low, high, mean, std = (numbers.reshape(shape) for numbers in (LOW, HIGH, MEAN, STD))
    values = np.array(satellite, np.float32, copy=copy or None, order="C")  # in any other, `reshape` would copy
    for image in values.reshape(-1, *values.shape[-3:]):  # one at a time stays in the processor's cache
        image[~np.isfinite(image)] = 0
        np.clip(image, low, high, out=image)
        image -= mean
        image /= std
    return values


def classify(rate: Array, rain_threshold: float) -> Array:
    """Rain rates (frames, height, width), mm/h with sentinels, as uint8 events: 0 dry, 1 rain, 2 masked.

    Rain begins at `rain_threshold`; at threshold 0 any rain counts (the competition's first stage). Masked is what
    nobody measured: `MISSING`, infinite, not a number, or above `HIGHEST_RATE`.
    """
    # Compared in float32: 0.2 in a file is the float32 next to 0.2, which lies above the float64.
    threshold = np.float32(rain_threshold)
    events = np.empty(rate.shape, np.uint8)
    with np.errstate(invalid="ignore"):
        for field, event in zip(rate, events, strict=True):  # one at a time stays in the processor's cache
            event[...] = field >= threshold if threshold > 0 else field > 0
            event[~np.isfinite(field) | (field == MISSING) | (field > HIGHEST_RATE)] = MASKED
    return events
