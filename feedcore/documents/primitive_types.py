"""The primitive types that source formats and message models share, named as SBE names them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrimitiveType:
    """One primitive type: its size in bytes, numpy's code for it (little-endian), and the integers it holds."""

    name: str
    size: int
    numpy_code: str
    minimum: int
    maximum: int


def _integer(name: str, size: int, signed: bool) -> PrimitiveType:
    bits = 8 * size
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return PrimitiveType(name, size, f"<{'i' if signed else 'u'}{size}", low, high)


PRIMITIVES: dict[str, PrimitiveType] = {
    kind.name: kind
    for kind in (
        PrimitiveType("char", 1, "S1", 0, 255),
        *(_integer(f"int{8 * size}", size, True) for size in (1, 2, 4, 8)),
        *(_integer(f"uint{8 * size}", size, False) for size in (1, 2, 4, 8)),
    )
}
