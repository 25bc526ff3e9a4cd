"""Functions for generated kernels: texts, numbers in texts, maps, days. The caller checks all bounds."""

from __future__ import annotations

import numpy as np

from tandemfeed.adapter.conversion.kernel.unaligned import LOADS, STORES
from tandemfeed.adapter.conversion.state.state_kernels import SAMPLE_COUNT, SAMPLES, SAMPLES_MAX, hash_of
from tandemfeed.adapter.kernel_cache import compiled_once

NULL = (1 << 63) - 1
NAN_BITS = 0x7FF8_0000_0000_0000
DECIMAL_MAX = float(1 << 62)
DAY_NS = 86_400_000_000_000
YEAR_MIN, YEAR_MAX = 1970, 2099
load_u8, load_i64, store_8 = LOADS["load_u8"], LOADS["load_i64"], STORES["store_8"]


@compiled_once
def note_bad(arena, position, index, reason):  # type: ignore[no-untyped-def]
    """Count a refused message, and keep samples of the first ones of this call."""
    arena[reason] += 1
    taken = arena[SAMPLE_COUNT]
    if taken < SAMPLES_MAX:
        arena[SAMPLES + 2 * taken] = position
        arena[SAMPLES + 2 * taken + 1] = (index << 8) | reason
        arena[SAMPLE_COUNT] = taken + 1


@compiled_once
def trim_word(word):  # type: ignore[no-untyped-def]
    """A text of at most 8 bytes, with its trailing blanks replaced by zeros."""
    shift = 56
    while shift >= 0:
        byte = (word >> shift) & 255
        if byte == 32:
            word &= ~(np.int64(255) << shift)
        elif byte != 0:
            break
        shift -= 8
    return word


@compiled_once
def text_size(datagram, at, size):  # type: ignore[no-untyped-def]
    """The size of a text in bytes, without trailing blanks and zeros."""
    while size > 0:
        byte = load_u8(datagram, at + size - 1)
        if byte != 32 and byte != 0:
            break
        size -= 1
    return np.int64(size)


@compiled_once
def word_of_text(datagram, at, size, number):  # type: ignore[no-untyped-def]
    """Word `number` of a text of any size, without trailing blanks; zeros beyond its end."""
    size = text_size(datagram, at, size)
    word = np.int64(0)
    for place in range(8 * number, min(size, 8 * number + 8)):
        word |= np.int64(load_u8(datagram, at + place)) << (8 * (place & 7))
    return word


@compiled_once
def word_in_text(datagram, at, size, place):  # type: ignore[no-untyped-def]
    """Word `place` of a text of `size` bytes, padded with zeros."""
    left = size - 8 * place
    if left >= 8:
        return load_i64(datagram, at + 8 * place)
    word = np.int64(0)
    for byte in range(left):
        word |= load_u8(datagram, at + 8 * place + byte) << (8 * byte)
    return word


@compiled_once
def put_text(arena, at, datagram, place, size, words):  # type: ignore[no-untyped-def]
    """Put a text into words of the arena, without its trailing blanks; it ends with zeros."""
    blank = True
    for number in range(words):  # from its end
        word = word_in_text(datagram, place, size, words - 1 - number)
        if blank:
            word = trim_word(word)
            blank = word == 0
        arena[at + words - 1 - number] = word


@compiled_once
def copy_text(out, fill, datagram, at, size):  # type: ignore[no-untyped-def]
    """Write a text unchanged, with its blanks; returns the end position."""
    for place in range(size):
        store_8(out, fill + place, load_u8(datagram, at + place))
    return fill + size


@compiled_once
def append_text(out, fill, datagram, at, size, most):  # type: ignore[no-untyped-def]
    """Write a text without trailing blanks, at most `most` bytes; returns the end position."""
    size = min(text_size(datagram, at, size), most)
    for place in range(size):
        store_8(out, fill + place, load_u8(datagram, at + place))
    return fill + size


@compiled_once
def append_table_text(out, fill, tables, at, words):  # type: ignore[no-untyped-def]
    """Write a text of the table, which ends at a zero or at the end of its words; returns the end position."""
    for place in range(8 * words):
        byte = (tables[at + (place >> 3)] >> (8 * (place & 7))) & 255
        if byte == 0:
            break
        store_8(out, fill, byte)
        fill += 1
    return fill


@compiled_once
def append_word(out, fill, word):  # type: ignore[no-untyped-def]
    """Write a text of at most 8 bytes, which ends at a zero; returns the end position."""
    for place in range(8):
        byte = (word >> (8 * place)) & 255
        if byte == 0:
            break
        store_8(out, fill, byte)
        fill += 1
    return fill


@compiled_once
def append_number(out, fill, value, decimals):  # type: ignore[no-untyped-def]
    """Write a number with this many decimals, or nothing for null; returns the end position."""
    if value == NULL:
        return fill
    if value < 0:
        store_8(out, fill, 45)
        fill += 1
    rest = value if value < 0 else -value  # negative, because the smallest integer has no positive counterpart
    digits = 1
    power = np.int64(-1)
    while digits <= decimals or (digits < 19 and rest <= power * 10):
        power = power * 10
        digits += 1
    for place in range(digits):
        if place == digits - decimals:
            store_8(out, fill, 46)
            fill += 1
        store_8(out, fill, 48 + rest // power)
        rest -= rest // power * power
        power = -(-power // 10)
        fill += 1
    return fill


@compiled_once
def zero_rest(out, fill, stop):  # type: ignore[no-untyped-def]
    """Write zeros up to `stop`."""
    while fill < stop:
        store_8(out, fill, 0)
        fill += 1


@compiled_once
def parse_number(datagram, at, size, exponent):  # type: ignore[no-untyped-def]
    """(number, failed) of a decimal text: optional blanks and sign, at most 18 digits; a blank text is null."""
    stop = at + text_size(datagram, at, size)
    while at < stop and load_u8(datagram, at) == 32:
        at += 1
    if at == stop:
        return np.int64(NULL), False
    sign = load_u8(datagram, at)
    if sign == 43 or sign == 45:
        at += 1
    value = np.int64(0)
    digits = 0
    decimals = np.int64(-1)  # after the point; -1: no point yet
    while at < stop:
        byte = load_u8(datagram, at)
        if byte == 46 and decimals < 0:
            decimals = np.int64(0)
        elif byte < 48 or byte > 57:
            return np.int64(0), True
        else:
            digits += 1
            if decimals == -exponent:  # beyond the exponent only zeros can be dropped without loss
                if byte != 48:
                    return np.int64(0), True
            elif value >= 100_000_000_000_000_000:
                return np.int64(0), True
            else:
                value = value * 10 + (byte - 48)
                decimals += 1 if decimals >= 0 else 0
        at += 1
    if digits == 0:
        return np.int64(0), True
    for _ in range(-exponent - max(decimals, 0)):
        if value >= 100_000_000_000_000_000:
            return np.int64(0), True
        value *= 10
    return -value if sign == 45 else value, False


@compiled_once
def decimal_of(value, factor, divisor, rounding):  # type: ignore[no-untyped-def]
    """(value * factor / divisor as an integer, failed) of a double; NaN is null. One of factor and divisor is 1.

    Args:
        rounding: 0: half up, and the caller checks that nothing is lost; 1: floor; 2: half up.
    """
    if value != value:
        return np.int64(NULL), False
    scaled = value * np.float64(factor) / np.float64(divisor)
    if not (-DECIMAL_MAX <= scaled <= DECIMAL_MAX):
        return np.int64(0), True
    found = np.floor(scaled)
    if rounding != 1 and scaled - found >= 0.5:
        found += 1.0
    return np.int64(found), False


@compiled_once
def decimal_of_64(bits, factor, divisor, rounding):  # type: ignore[no-untyped-def]
    """`decimal_of` a double, by its bits."""
    value = np.int64(bits).view(np.float64)
    found, failed = decimal_of(value, factor, divisor, rounding)
    if rounding == 0 and found != NULL and np.float64(found) * np.float64(divisor) / np.float64(factor) != value:
        failed = True
    return found, failed


@compiled_once
def decimal_of_32(bits, factor, divisor, rounding):  # type: ignore[no-untyped-def]
    """`decimal_of` a float, by its bits."""
    value = np.int32(bits).view(np.float32)
    found, failed = decimal_of(np.float64(value), factor, divisor, rounding)
    if rounding == 0 and found != NULL:
        failed = failed or np.float32(np.float64(found) * np.float64(divisor) / np.float64(factor)) != value
    return found, failed


@compiled_once
def double_of(value, factor, divisor):  # type: ignore[no-untyped-def]
    """The bits of the double nearest to value * factor / divisor; of NaN for null."""
    if value == NULL:
        return np.int64(NAN_BITS)
    return np.float64(np.float64(value) * np.float64(factor) / np.float64(divisor)).view(np.int64)


@compiled_once
def look_up(tables, at, count, key):  # type: ignore[no-untyped-def]
    """The index of a key among `count` sorted ones; -1 if it is not found."""
    low, high = np.int64(0), np.int64(count)
    while low < high:
        middle = (low + high) >> 1
        if tables[at + middle] < key:
            low = middle + 1
        else:
            high = middle
    return low if low < count and tables[at + low] == key else np.int64(-1)


@compiled_once
def look_up_text(datagram, at, size, tables, index, mask, words):  # type: ignore[no-untyped-def]
    """The index of a text among the keys of a map that `kernel_tables.TextMap` describes; -1 if it is not found."""
    size = text_size(datagram, at, size)
    if size > 8 * words:
        return np.int64(-1)
    mixed = hash_of(word_in_text(datagram, at, size, 0))
    for word in range(1, (size + 7) >> 3):
        mixed = hash_of(mixed ^ word_in_text(datagram, at, size, word))
    tag = (mixed >> 32) & 0x7FFF_FFFF
    place = mixed & mask
    while True:
        entry = tables[index + place]
        if entry == 0:
            return np.int64(-1)
        if entry >> 32 == tag:
            found = (entry & 0xFFFF_FFFF) - 1
            key = index + mask + 1 + found * words
            same = True
            for word in range(words):
                same = same and tables[key + word] == word_in_text(datagram, at, size, word)
            if same:
                return found
        place = (place + 1) & mask


@compiled_once
def is_text(datagram, at, size, tables, literal, length):  # type: ignore[no-untyped-def]
    """True if a text, without trailing blanks, equals the table's literal."""
    if text_size(datagram, at, size) != length:
        return False
    for place in range(length):
        if load_u8(datagram, at + place) != (tables[literal + (place >> 3)] >> (8 * (place & 7))) & 255:
            return False
    return True


@compiled_once
def midnight_of(session, tables, at, count):  # type: ignore[no-untyped-def]
    """Midnight of a day YYYYMMDD in nanoseconds since 1970, UTC; null if the day does not exist.

    Args:
        at: position in `tables` of `count` days on which the zone's offset at midnight changes, then of the offsets in
            seconds.
    """
    year, month, day = session // 10_000, session // 100 % 100, session % 100
    if not (YEAR_MIN <= year <= YEAR_MAX and 1 <= month <= 12 and 1 <= day <= 31):
        return np.int64(NULL)
    shifted = year - 1 if month <= 2 else year  # with years that begin in March, the leap day is the last day
    days = 365 * shifted + shifted // 4 - shifted // 100 + shifted // 400
    days += (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1 - 719_468
    low, high = np.int64(0), np.int64(count)
    while low < high:
        middle = (low + high) >> 1
        if tables[at + middle] <= days:
            low = middle + 1
        else:
            high = middle
    offset = tables[at + count + low - 1] if low > 0 else np.int64(0)
    return days * DAY_NS - offset * 1_000_000_000


@compiled_once
def wide_floor_divide(high, low, divisor):  # type: ignore[no-untyped-def]
    """floor((high * 2**32 + low) / divisor) for 0 <= low < 2**32 and divisor > 0; the null value for divisor 0."""
    if divisor == 0:
        return np.int64(NULL)
    quotient = high // divisor
    rest = high - quotient * divisor
    if rest < (1 << 31):
        return (quotient << 32) + ((rest << 32) | low) // divisor
    tail = np.int64(0)
    for bit in range(31, -1, -1):  # long division: rest * 2**32 would not fit
        rest = rest * 2 + ((low >> bit) & 1)
        tail *= 2
        if rest >= divisor:
            rest -= divisor
            tail += 1
    return (quotient << 32) + tail
