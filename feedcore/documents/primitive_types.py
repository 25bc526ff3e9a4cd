"""The primitive types that source formats and message models share: those of SBE 1.0, and a few for source formats."""

from __future__ import annotations

import math
from dataclasses import dataclass

Number = int | float


@dataclass(frozen=True, slots=True)
class Primitive:
    """One primitive type.

    Attributes:
        size: bytes.
        struct_code, numpy_code: for `struct` and numpy, without the byte order; `struct` has no integers of odd widths.
        minimum, maximum: the range of integers; 0 and 0 for floats, which accept no integer without a cast.
        null: the standard's default null; NaN for floats, 0 for char.
    """

    name: str
    size: int
    struct_code: str
    numpy_code: str
    minimum: int
    maximum: int
    null: Number

    @property
    def is_integer(self) -> bool:
        """True for integers, not for char."""
        return "int" in self.name

    @property
    def is_float(self) -> bool:
        """True for float and double."""
        return self.name in ("float", "double")

    @property
    def is_unsigned(self) -> bool:
        """True for the unsigned integers."""
        return self.name.startswith("uint")

    def holds(self, value: Number) -> bool:
        """True if a number, or a char's code, can be written as this type."""
        return self.is_float or self.minimum <= value <= self.maximum

    def parse(self, text: str) -> Number:
        """Parse a value in a schema: a number, or for char one character (which may be a blank) or its code.

        Raises:
            ValueError: the text is not such a value, or does not fit.
        """
        if self.name == "char" and text == " ":
            return ord(text)
        text = text.strip()
        if self.is_float:
            return float(text)
        if self.name == "char" and len(text) == 1:
            text = str(ord(text))
        value = int(text, 16 if text.lower().startswith(("0x", "-0x")) else 10)
        if not self.holds(value):
            raise ValueError(f"{text} does not fit in {self.name}")
        return value


@dataclass(frozen=True, slots=True)
class Place:
    """An integer in a header, `offset` bytes from the header's start."""

    kind: Primitive
    offset: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.kind.size

    @property
    def end(self) -> int:
        """The offset after it."""
        return self.offset + self.kind.size


def _integers(*widths: int) -> dict[str, Primitive]:
    """The signed and unsigned integers of this many bits."""
    found: dict[str, Primitive] = {}
    for bits in widths:
        size, top = bits // 8, 1 << bits
        code = {1: "b", 2: "h", 4: "i", 8: "q"}.get(size, "")
        signed, unsigned = (f"i{size}", f"u{size}") if code else (f"V{size}", f"V{size}")
        low = -top // 2
        found[f"int{bits}"] = Primitive(f"int{bits}", size, code, signed, low, top // 2 - 1, low)
        found[f"uint{bits}"] = Primitive(f"uint{bits}", size, code.upper(), unsigned, 0, top - 1, top - 1)
    return found


PRIMITIVES: dict[str, Primitive] = {
    "char": Primitive("char", 1, "B", "S1", 0, 255, 0),
    **_integers(8, 16, 32, 64),
    "float": Primitive("float", 4, "f", "f4", 0, 0, math.nan),
    "double": Primitive("double", 8, "d", "f8", 0, 0, math.nan),
}
SOURCE_TYPES = {**PRIMITIVES, **_integers(24, 40, 48, 56)}
