"""Memory operations for compiled code: atomic loads and stores, compare-and-swap, copying, CRC-32C.

Processes share mapped files, so each must see the others' writes whole and in order: a word that publishes bytes is
stored with release order and loaded with acquire order. This module does not interpret the bytes.

CRC-32C (Castagnoli, RFC 3720 appendix B.4) uses the processor's instruction where it exists. Functions take and return
the running value, so that a CRC can begin with a salt and cover several pieces. All values are signed 64-bit, because
numba would combine a signed and an unsigned one into a float.
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils, config
from numba.extending import intrinsic

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
POLYNOMIAL = 0x82F6_3B78  # reflected
AROUND_CACHE_SIZE = 256 << 10  # longer copies bypass the caches, which they would only fill
PREFETCH_DISTANCE = 6_144  # ahead of the CRC; the processor's own prefetching stops at a page's end
LANE = 512  # bytes of each of the three streams that keep the processor's CRC unit busy; a multiple of 8

_FEATURES = llvm.get_host_cpu_features() if config.CPU_NAME is None else {}
HAS_X86_CRC = platform.machine() == "x86_64" and bool(_FEATURES.get("sse4.2"))
HAS_ARM_CRC = platform.machine() == "aarch64" and bool(_FEATURES.get("crc"))


def _load(width: ir.IntType, order: str | None) -> Any:
    @intrinsic
    def load(_typing: Any, address: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], width.as_pointer())
            if order is None:
                value = builder.load(pointer, align=1)
            else:
                value = builder.load_atomic(pointer, order, width.width // 8)
            return value if width is I64 else builder.zext(value, I64)

        return types.int64(types.int64), generate

    return load


def _store(width: ir.IntType, order: str | None) -> Any:
    @intrinsic
    def store(_typing: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], width.as_pointer())
            value = arguments[1] if width is I64 else builder.trunc(arguments[1], width)
            if order is None:
                builder.store(value, pointer, align=1)
            else:
                builder.store_atomic(value, pointer, order, width.width // 8)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return store


load8, load32, load64 = _load(I8, None), _load(I32, None), _load(I64, None)
store8, store32, store64 = _store(I8, None), _store(I32, None), _store(I64, None)
load32_acquire, load64_acquire = _load(I32, "acquire"), _load(I64, "acquire")
store32_release, store64_release = _store(I32, "release"), _store(I64, "release")


@intrinsic
def store64_around_cache(_typing: Any, address: Any, value: Any) -> Any:
    """Store past the caches; aligned. Not ordered by a release: `fence` before publishing."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], I64.as_pointer())
        store = builder.store(arguments[1], pointer, align=8)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def fence(_typing: Any) -> Any:
    """Make all earlier stores, including those past the caches, visible before any later store."""

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def compare_and_swap64(_typing: Any, address: Any, expected: Any, desired: Any) -> Any:
    """Store `desired` if the aligned word is `expected`; return its previous value."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], I64.as_pointer())
        pair = builder.cmpxchg(pointer, arguments[1], arguments[2], "acq_rel", "acquire")
        return builder.extract_value(pair, 0)

    return types.int64(types.int64, types.int64, types.int64), generate


@intrinsic
def prefetch(_typing: Any, address: Any) -> Any:
    """Prefetch a cache line; never faults."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def address_of(_typing: Any, buffer: Any) -> Any:
    """The address of the bytes of a `bytes` object or a contiguous array; keep the object alive meanwhile."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        proxy = cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(proxy.data, I64)

    return types.int64(buffer), generate


def _hardware_crc(name: str, *, is_arm: bool, width: ir.IntType) -> Any:
    @intrinsic
    def step(_typing: Any, crc: Any, value: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            crc, value = arguments
            value = value if width is I64 else builder.trunc(value, width)
            crc_type = I32 if is_arm or width is not I64 else I64
            crc = crc if crc_type is I64 else builder.trunc(crc, I32)
            value_type = I32 if is_arm and width is I8 else value.type
            value = builder.zext(value, value_type) if value_type is not value.type else value
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(crc_type, [crc_type, value_type]), name
            )
            crc = builder.call(function, [crc, value])
            return crc if crc_type is I64 else builder.zext(crc, I64)

        return types.int64(types.int64, types.int64), generate

    return step


def _byte_table() -> np.ndarray[Any, np.dtype[np.int64]]:
    values = np.arange(256, dtype=np.int64)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ POLYNOMIAL, values >> 1)
    return values


BYTE_TABLE = _byte_table()


def _advance_table() -> np.ndarray[Any, np.dtype[np.int64]]:
    """The effect of LANE zero bytes on each of a CRC's four bytes: CRC is linear, so the parts combine by xor."""
    values = np.concatenate([np.arange(256, dtype=np.int64) << shift for shift in (0, 8, 16, 24)])
    for _ in range(LANE):
        values = (values >> 8) ^ BYTE_TABLE[values & 0xFF]
    return values


ADVANCE = _advance_table()

if HAS_X86_CRC:
    crc_word = _hardware_crc("llvm.x86.sse42.crc32.64.64", is_arm=False, width=I64)
    crc_byte = _hardware_crc("llvm.x86.sse42.crc32.32.8", is_arm=False, width=I8)
elif HAS_ARM_CRC:
    crc_word = _hardware_crc("llvm.aarch64.crc32cx", is_arm=True, width=I64)
    crc_byte = _hardware_crc("llvm.aarch64.crc32cb", is_arm=True, width=I8)
else:

    @njit(inline="always")
    def crc_byte(crc: int, value: int) -> int:
        """The CRC of one byte, by table."""
        return (crc >> 8) ^ BYTE_TABLE[(crc ^ value) & 0xFF]

    @njit
    def crc_word(crc: int, value: int) -> int:
        """The CRC of eight bytes, by table."""
        for shift in range(0, 64, 8):
            crc = crc_byte(crc, (value >> shift) & 0xFF)
        return crc


@njit(inline="always")
def _advance(crc: int) -> int:
    return (
        ADVANCE[crc & 0xFF]
        ^ ADVANCE[256 + ((crc >> 8) & 0xFF)]
        ^ ADVANCE[512 + ((crc >> 16) & 0xFF)]
        ^ ADVANCE[768 + (crc >> 24)]
    )


@njit
def crc_copy(crc: int, target: int, source: int, size: int) -> int:
    """Copy bytes and compute their CRC in one pass; return the running value."""
    place = 0
    if size >= AROUND_CACHE_SIZE and not target & 7:
        while place + 3 * LANE <= size:
            second = third = 0
            for step in range(place, place + LANE, 8):
                one, two, three = load64(source + step), load64(source + step + LANE), load64(source + step + 2 * LANE)
                store64_around_cache(target + step, one)
                store64_around_cache(target + step + LANE, two)
                store64_around_cache(target + step + 2 * LANE, three)
                crc, second, third = crc_word(crc, one), crc_word(second, two), crc_word(third, three)
            crc = _advance(_advance(crc) ^ second) ^ third
            place += 3 * LANE
        fence()
    while place + 3 * LANE <= size:
        second = third = 0
        for step in range(place, place + LANE, 8):
            one, two, three = load64(source + step), load64(source + step + LANE), load64(source + step + 2 * LANE)
            store64(target + step, one)
            store64(target + step + LANE, two)
            store64(target + step + 2 * LANE, three)
            crc, second, third = crc_word(crc, one), crc_word(second, two), crc_word(third, three)
        crc = _advance(_advance(crc) ^ second) ^ third
        place += 3 * LANE
    while place + 8 <= size:
        one = load64(source + place)
        store64(target + place, one)
        crc = crc_word(crc, one)
        place += 8
    while place < size:
        one = load8(source + place)
        store8(target + place, one)
        crc = crc_byte(crc, one)
        place += 1
    return crc


@njit
def crc_of(crc: int, source: int, size: int) -> int:
    """Compute the CRC of bytes; return the running value."""
    place = 0
    while place + 3 * LANE <= size:
        for line in range(place, place + 3 * LANE, 64):
            prefetch(source + line + PREFETCH_DISTANCE)
        second = third = 0
        for step in range(place, place + LANE, 8):
            crc = crc_word(crc, load64(source + step))
            second = crc_word(second, load64(source + step + LANE))
            third = crc_word(third, load64(source + step + 2 * LANE))
        crc = _advance(_advance(crc) ^ second) ^ third
        place += 3 * LANE
    while place + 8 <= size:
        crc = crc_word(crc, load64(source + place))
        place += 8
    while place < size:
        crc = crc_byte(crc, load8(source + place))
        place += 1
    return crc
