"""The primitive types of SBE 1.0, with the standard's default null of each."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from feedcore.documents.primitive_types import PRIMITIVES

Number = int | float


@dataclass(frozen=True, slots=True)
class Primitive:
    """One primitive type.

    Attributes:
        size: bytes.
        struct_code: for `struct`, without the byte order.
        numpy_code: for numpy, without the byte order.
        minimum, maximum: what the bytes can hold; for floats the infinities.
        null: the standard's default null; NaN for floats, 0 for char.
    """

    name: str
    size: int
    struct_code: str
    numpy_code: str
    minimum: Number
    maximum: Number
    null: Number

    @property
    def is_integer(self) -> bool:
        """True for the eight integers; char is none."""
        return "int" in self.name

    @property
    def is_float(self) -> bool:
        """True for float and double."""
        return self.name in ("float", "double")

    @property
    def is_unsigned(self) -> bool:
        """True for the unsigned integers."""
        return self.name.startswith("uint")

    def is_null(self, raw: Number, null: Number) -> bool:
        """True if a value as it is on the wire is this null; any NaN is a float's."""
        return math.isnan(raw) if isinstance(null, float) and math.isnan(null) else raw == null

    def parse(self, text: str) -> Number:
        """A value written in a schema: a number, or for char one character or its code.

        Raises:
            ValueError: it is no such value, or does not fit.
        """
        text = text.strip()
        if self.is_float:
            return float(text)
        if self.name == "char" and len(text) == 1:
            text = str(ord(text))
        value = int(text, 16 if text.lower().startswith(("0x", "-0x")) else 10)
        if not self.minimum <= value <= self.maximum:
            raise ValueError(f"{text} does not fit in {self.name}")
        return value


def _integer(name: str) -> Primitive:
    kind = PRIMITIVES[name]
    is_signed = kind.minimum < 0
    code = {1: "b", 2: "h", 4: "i", 8: "q"}[kind.size]
    null = kind.minimum if is_signed else kind.maximum
    return Primitive(
        name,
        kind.size,
        code if is_signed else code.upper(),
        kind.numpy_code.lstrip("<"),
        kind.minimum,
        kind.maximum,
        null,
    )


SBE_PRIMITIVES: dict[str, Primitive] = {
    "char": Primitive("char", 1, "B", "S1", 0, 255, 0),
    **{name: _integer(name) for name in PRIMITIVES if "int" in name},
    "float": Primitive("float", 4, "f", "f4", -math.inf, math.inf, math.nan),
    "double": Primitive("double", 8, "d", "f8", -math.inf, math.inf, math.nan),
}
assert all(struct.calcsize("<" + kind.struct_code) == kind.size for kind in SBE_PRIMITIVES.values())
