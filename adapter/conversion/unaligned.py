"""Loads and stores of little-endian integers at any byte offset, as single machine instructions inside kernels.

Callers check bounds before: these do not.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, bits: int) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), ir.IntType(bits).as_pointer())


def _make_load(bits: int, *, signed: bool) -> Any:
    @intrinsic
    def load(_typing: Any, array: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = builder.load(_pointer(context, builder, signature.args[0], arguments[0], arguments[1], bits))
            value.align = 1
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


# Every value is an int64 in the kernel; a uint64 keeps its bits.
LOADS = {f"load_{sign}{bits}": _make_load(bits, signed=sign == "i") for bits in (8, 16, 32, 64) for sign in ("i", "u")}
STORES = {f"store_{bits}": _make_store(bits) for bits in (8, 16, 32, 64)}
