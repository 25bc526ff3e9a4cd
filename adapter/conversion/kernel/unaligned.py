"""Loads and stores of integers at any byte offset, and prefetches, as single machine instructions inside kernels.

These functions do not check bounds; the caller does. A name contains sign, bits and byte order: `load_u16be`,
`load_i64`, `store_32`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, bits: int) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), ir.IntType(bits).as_pointer())


def _make_load(bits: int, *, signed: bool, swapped: bool) -> Any:
    @intrinsic
    def load(_typing: Any, array: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.load(_pointer(context, builder, signature.args[0], arguments[0], arguments[1], bits))
            value.align = 1
            if swapped:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return builder.sext(value, ir.IntType(64)) if signed else builder.zext(value, ir.IntType(64))

        return types.int64(array, types.intp), generate

    return load


def _make_store(bits: int) -> Any:
    @intrinsic
    def store(_typing: Any, array: Any, offset: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], bits)
            narrow = arguments[2] if bits == 64 else builder.trunc(arguments[2], ir.IntType(bits))
            builder.store(narrow, pointer).align = 1
            return context.get_dummy_value()

        return types.void(array, types.intp, types.int64), generate

    return store


@intrinsic
def store_image(_typing: Any, array: Any, offset: Any, words: Any, place: Any, size: Any) -> Any:
    """Store the first `size` bytes, a constant, of the words from `place` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = _pointer(context, builder, signature.args[0], arguments[0], arguments[1], 8)
        data = context.make_array(signature.args[2])(context, builder, arguments[2]).data
        cgutils.raw_memcpy(builder, target, builder.gep(data, [arguments[3]]), arguments[4], 1)
        return context.get_dummy_value()

    return types.void(array, types.intp, words, types.intp, types.intp), generate


@intrinsic
def prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of an array's element, for writing; the kernel does not wait for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, word(1), word(3), word(1)])  # for writing; into the nearest cache; data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


# Every value is an int64 in the kernel; a uint64 keeps its bits.
LOADS = {
    f"load_{sign}{bits}{order}": _make_load(bits, signed=sign == "i", swapped=order == "be")
    for bits in (8, 16, 32, 64)
    for sign in ("i", "u")
    for order in ("", "be")
    if bits > 8 or not order
}
STORES = {f"store_{bits}": _make_store(bits) for bits in (8, 16, 32, 64)}

PIECES = {1: (1,), 2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1), 8: (8,)}


def load_expression(size: int, at: str, *, signed: bool = False, is_big_endian: bool = False) -> str:
    """Kernel source that loads an integer of 1 to 8 bytes at position `at` of the datagram."""
    terms = []
    offset = 0
    for number, piece in enumerate(PIECES[size]):
        is_top = number == 0 if is_big_endian else number == len(PIECES[size]) - 1
        sign = "i" if signed and is_top else "u"
        order = "be" if is_big_endian and piece > 1 else ""
        place = f"{at} + {offset}" if offset else at
        load = f"load_{sign}{8 * piece}{order}(datagram, {place})"
        shift = 8 * (size - offset - piece if is_big_endian else offset)
        terms.append(f"({load} << {shift})" if shift else load)
        offset += piece
    return " | ".join(terms) if len(terms) == 1 else f"({' | '.join(terms)})"
