"""RGB to hue, saturation, value and back, on separate float64 planes; every sum and quotient as in scikit-image."""

import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.float64]


def from_rgb(red: Plane, green: Plane, blue: Plane) -> tuple[Plane, Plane, Plane]:
    value = np.maximum(np.maximum(red, green), blue)
    spread = value - np.minimum(np.minimum(red, green), blue)
    # Grey pixels have no hue: any divisor but zero makes both quotients zero, which is the convention.
    some = np.where(spread == 0, 1.0, spread)
    saturation = spread / np.where(spread == 0, 1.0, value)
    hue = np.where(green == value, 2.0 + (blue - red) / some, (green - blue) / some)
    # Of several equal maxima the later channel decides.
    np.copyto(hue, 4.0 + (red - green) / some, where=blue == value)
    hue /= 6.0
    hue += hue < 0
    hue[spread == 0] = 0.0
    return hue, saturation, value


def to_rgb(hue: Plane, saturation: Plane, value: Plane) -> tuple[Plane, Plane, Plane]:
    part = hue * 6
    sector = np.floor(part)
    part -= sector
    sector[sector == 6] = 0
    # Between the highest and the lowest channel lies one that rises in even sectors and falls in odd ones.
    even = (sector == 0) | (sector == 2) | (sector == 4)
    low = value * (1 - saturation)
    middle = value * (1 - np.where(even, 1 - part, part) * saturation)
    red = np.where((sector == 2) | (sector == 3), low, np.where((sector == 0) | (sector == 5), value, middle))
    green = np.where(sector > 3, low, np.where((sector == 1) | (sector == 2), value, middle))
    blue = np.where(sector < 2, low, np.where((sector == 3) | (sector == 4), value, middle))
    return red, green, blue
