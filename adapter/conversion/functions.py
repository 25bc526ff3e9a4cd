"""The converter functions: what each takes, what it keeps, and the kernel code it becomes.

A function is a text template over local variables of the generated kernel: `{of}` and `{weight}` are source values,
`{cell}` is its state's columns in `state[slot, …]`. The plain-Python meaning of the same function stands in
`adapter.conversion.interpreted`; tests hold the two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedcore.primitive_types import PRIMITIVES, PrimitiveType

NULL = (1 << 63) - 1  # null of every price cell and of empty state, as in the source's price fields


@dataclass(frozen=True, slots=True)
class ConverterFunction:
    """A converter function.

    Attributes:
        arguments: attributes of its element that name source fields.
        cells: state columns it keeps per key; with their value before any message.
        update: kernel lines, run once per message, before anything of the message is written.
        value: kernel expression of the output; "" writes nothing.
        result: the type of the value; None: the type of the `of` field.
        is_peek: reads the cell that another element keeps.
    """

    name: str
    arguments: tuple[str, ...]
    cells: tuple[int, ...] = ()
    update: tuple[str, ...] = ()
    value: str = "{of}"
    result: PrimitiveType | None = None
    is_peek: bool = False

    @property
    def keeps_state(self) -> bool:
        """True if it reads or keeps state, and so needs `by`."""
        return bool(self.cells) or self.is_peek


INT64 = PRIMITIVES["int64"]
UINT64 = PRIMITIVES["uint64"]

FUNCTIONS: dict[str, ConverterFunction] = {
    function.name: function
    for function in (
        ConverterFunction("copy", ("of",)),
        ConverterFunction("constant", (), value="{constant}"),
        ConverterFunction(
            "day_volume",
            ("of",),
            cells=(0,),
            update=("state[slot, {c0}] += {of}",),
            value="state[slot, {c0}]",
            result=UINT64,
        ),
        ConverterFunction(
            "day_high",
            ("of",),
            cells=(NULL,),
            update=(
                "if {of} != NULL and (state[slot, {c0}] == NULL or {of} > state[slot, {c0}]):",
                "    state[slot, {c0}] = {of}",
            ),
            value="state[slot, {c0}]",
        ),
        ConverterFunction(
            "day_low",
            ("of",),
            cells=(NULL,),
            update=("if {of} < state[slot, {c0}]:  # NULL is the largest value", "    state[slot, {c0}] = {of}"),
            value="state[slot, {c0}]",
        ),
        ConverterFunction(
            "last",
            ("of",),
            cells=(NULL,),
            update=("if {of} != NULL:", "    state[slot, {c0}] = {of}"),
            value="state[slot, {c0}]",
        ),
        # The turnover needs more than 64 bits: it is c0 * 2**32 + c1 with 0 <= c1 < 2**32; c2 is the weight's sum.
        ConverterFunction(
            "vwap",
            ("of", "weight"),
            cells=(0, 0, 0),
            update=(
                "if {of} != NULL:",
                "    low = ({of} & MASK32) * {weight} + state[slot, {c1}]",
                "    state[slot, {c0}] += ({of} >> 32) * {weight} + ((low >> 32) & MASK32)",
                "    state[slot, {c1}] = low & MASK32",
                "    state[slot, {c2}] += {weight}",
            ),
            value="wide_floor_divide(state[slot, {c0}], state[slot, {c1}], state[slot, {c2}])",
        ),
        ConverterFunction("peek", (), value="state[slot, {c0}]", result=INT64, is_peek=True),
    )
}
