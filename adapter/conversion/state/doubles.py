"""Doubles in cells, as the bits of an int64. NaN is null, and changes nothing.

Only operations that IEEE 754 defines to the last bit are used, one after another in the order of the messages, so all
adapters have equal cells. A NaN in a cell is either NULL, as at the start, or NAN_BITS, never the payload of a venue.
"""

from __future__ import annotations

import numpy as np

from tandemfeed.adapter.kernel_cache import compiled_once

NULL = (1 << 63) - 1  # as a double, a NaN
NAN_BITS = 0x7FF8_0000_0000_0000


@compiled_once
def double_in(bits):  # type: ignore[no-untyped-def]
    """The double with these bits."""
    return np.int64(bits).view(np.float64)


@compiled_once
def bits_of_double(value):  # type: ignore[no-untyped-def]
    """The bits of a double; the same for every NaN."""
    return np.int64(NAN_BITS) if value != value else np.float64(value).view(np.int64)


@compiled_once
def is_nan(bits):  # type: ignore[no-untyped-def]
    """True for the bits of a NaN."""
    value = double_in(bits)
    return value != value


@compiled_once
def widened(bits):  # type: ignore[no-untyped-def]
    """The bits of the double that equals a float."""
    return bits_of_double(np.float64(np.int32(bits).view(np.float32)))


@compiled_once
def last_double(kept, bits):  # type: ignore[no-untyped-def]
    """The newer of two doubles."""
    value = double_in(bits)
    return kept if value != value else bits


@compiled_once
def first_double(kept, bits):  # type: ignore[no-untyped-def]
    """The older of two doubles."""
    value = double_in(kept)
    return last_double(kept, bits) if value != value else kept


@compiled_once
def largest_double(kept, bits):  # type: ignore[no-untyped-def]
    """The larger of two doubles."""
    value, new = double_in(kept), double_in(bits)
    return last_double(kept, bits) if value != value or new > value else kept


@compiled_once
def smallest_double(kept, bits):  # type: ignore[no-untyped-def]
    """The smaller of two doubles."""
    value, new = double_in(kept), double_in(bits)
    return last_double(kept, bits) if value != value or new < value else kept


@compiled_once
def sum_of_doubles(kept, bits):  # type: ignore[no-untyped-def]
    """The sum of two doubles; NaN adds nothing."""
    new = double_in(bits)
    return kept if new != new else bits_of_double(double_in(kept) + new)


@compiled_once
def product_of_doubles(bits, weight):  # type: ignore[no-untyped-def]
    """The product of two doubles; NaN if one of them is NaN."""
    return bits_of_double(double_in(bits) * double_in(weight))


@compiled_once
def ratio_of_doubles(bits, weight):  # type: ignore[no-untyped-def]
    """The quotient of two doubles; NaN if the second is zero."""
    divisor = double_in(weight)
    return np.int64(NAN_BITS) if divisor == 0.0 else bits_of_double(double_in(bits) / divisor)
