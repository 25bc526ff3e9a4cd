"""Sums beyond 64 bits, in cells: of values with up to 64 bits, and the averages weighted by such values.

A wide sum is two cells: high and low, for high * 2**32 + low with 0 <= low < 2**32. The sum of products has four cells,
of which all but the first have 32 bits. So additions carry without unsigned numbers, and equal sums are equal cells.
"""

from __future__ import annotations

import numpy as np

from tandemfeed.adapter.conversion.kernel.kernel_parts import wide_floor_divide
from tandemfeed.adapter.kernel_cache import compiled_once

MASK32 = 0xFFFF_FFFF
NULL = (1 << 63) - 1
WEIGHTS = 4  # the place of the sum of weights, after that of the products


@compiled_once
def add_wide(arena, cells, value):  # type: ignore[no-untyped-def]
    """Add an int64 to a wide sum."""
    low = arena[cells + 1] + (value & MASK32)
    arena[cells] += (value >> 32) + (low >> 32)
    arena[cells + 1] = low & MASK32


@compiled_once
def wide_sum(arena, cells):  # type: ignore[no-untyped-def]
    """A wide sum as an int64; null if it does not fit."""
    high = arena[cells]
    if high < -(1 << 31) or high >= (1 << 31):
        return np.int64(NULL)
    return (high << 32) | arena[cells + 1]


@compiled_once
def add_weighted(arena, cells, value, weight):  # type: ignore[no-untyped-def]
    """Add value * weight to the products, and the weight, which is not negative, to the weights."""
    value_high, value_low = value >> 32, value & MASK32
    weight_high, weight_low = weight >> 32, weight & MASK32
    lowest = value_low * weight_low  # its bits as an unsigned number
    one, other = value_low * weight_high, value_high * weight_low
    high = value_high * weight_high
    part = arena[cells + 3] + (lowest & MASK32)
    arena[cells + 3] = part & MASK32
    part = arena[cells + 2] + (part >> 32) + ((lowest >> 32) & MASK32) + (one & MASK32) + (other & MASK32)
    arena[cells + 2] = part & MASK32
    part = arena[cells + 1] + (part >> 32) + (one >> 32) + (other >> 32) + (high & MASK32)
    arena[cells + 1] = part & MASK32
    arena[cells] += (part >> 32) + (high >> 32)
    add_wide(arena, cells + WEIGHTS, weight)


@compiled_once
def weighted_average(arena, cells):  # type: ignore[no-untyped-def]
    """floor(products / weights), which fits in 64 bits like the values; null if there are no weights."""
    top, third, second, first = arena[cells], arena[cells + 1], arena[cells + 2], arena[cells + 3]
    weight_high, weight_low = arena[cells + WEIGHTS], arena[cells + WEIGHTS + 1]
    fits = (top == 0 and third < (1 << 31)) or (top == -1 and third >= (1 << 31))
    if fits and weight_high < (1 << 30):  # twice a rest of the division must fit, too
        return wide_floor_divide((((top << 32) | third) << 32) | second, first, (weight_high << 32) | weight_low)
    is_negative = top < 0
    if is_negative:  # floor(-x / y) is -(floor((x - 1) / y) + 1)
        top, third, second, first = ~top, third ^ MASK32, second ^ MASK32, first ^ MASK32
    # Long division, a bit at a time. From the start, the rest is below the weights, because the result fits in 64 bits.
    rest_high, rest_low, result = top, third, np.int64(0)
    for bit in range(63, -1, -1):
        word = second if bit >= 32 else first
        rest_low = rest_low * 2 + ((word >> (bit & 31)) & 1)
        rest_high = rest_high * 2 + (rest_low >> 32)
        rest_low &= MASK32
        result *= 2
        if rest_high > weight_high or (rest_high == weight_high and rest_low >= weight_low):
            rest_high -= weight_high
            rest_low -= weight_low
            if rest_low < 0:
                rest_low += 1 << 32
                rest_high -= 1
            result += 1
    return ~result if is_negative else result
