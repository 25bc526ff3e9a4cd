"""The kernels that gather a packet's arguments for users' functions called once per packet, one kernel per stage.

They walk over the packet with the same code as the conversion, but check only what a call needs. So they may gather
arguments of a message that the conversion refuses; that answer is not used. They gather the arguments of every answer
that the conversion uses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tandemfeed.adapter.conversion.kernel.calls.packet_calls import PacketCalls, slot_lines, slots_needed, slots_of
from tandemfeed.adapter.conversion.kernel.kernel_names import shown
from tandemfeed.adapter.conversion.kernel.kernel_tables import TableData
from tandemfeed.adapter.conversion.kernel.lines.kernel_groups import split_pure
from tandemfeed.adapter.conversion.kernel.lines.kernel_messages import MessageWriter, needed
from tandemfeed.adapter.conversion.kernel.lines.kernel_operations import ValueWriter, indented
from tandemfeed.adapter.conversion.kernel.lines.kernel_walk import walk
from tandemfeed.adapter.conversion.table.table import Conversion, ConverterTable, Operation, type_of
from tandemfeed.feedcore.documents.source_layout import SourceMessageType

GATHER = '''

@compiled(types.UniTuple(types.int64, 2)(DATAGRAM, types.intp, types.intp, *(WORDS,) * 3, types.intp, WORDS, TABLES))
def gather_{stage}(datagram, skip, count, slots, counts, asked, room, answers, tables):
    """Gather the arguments of messages from `skip` on; returns (messages, slots).

    0 messages: there is no room for the first one, which needs that many slots. For each call, `counts` has the number
    of rows, and `asked` has a column of `room` words for their slots, and one for each argument.
    """
    if datagram.size < {header}:
        return count, 0
    position = {header}
    session = {session}
    sent_at_ns = {sent_at_ns}
{midnights}    used = 0
    for _ in range(skip):
        if position + {least} <= datagram.size:
            position += {length}
    index = 0
    while index < count:
        if position + {least} > datagram.size:
            return count, used
        length = {length}
        if length < {least} or position + length > datagram.size:
            return count, used
        kind = {kind}
        body = position + {body}
        limit = position + length
        reason = 0
{branches}
        position += length
        index += 1
    return index, used
'''


class _GatheringValues(ValueWriter):
    """The values of a conversion; those that a stage's calls compute are not computed, but their arguments gathered.

    Args:
        asked: the uses of functions that the stage calls.
    """

    def __init__(
        self,
        number: int,
        entry_fields: frozenset[str],
        data: TableData,
        has_block: bool,
        slots: Mapping[int, str],
        asked: Collection[Operation],
        calls: PacketCalls,
        groups: Mapping[int, int],
    ) -> None:
        super().__init__(number, entry_fields, data, has_block, None, slots, groups)
        self._asked = asked
        self._calls = calls

    def operation(self, operation: Operation, names: dict[str, str]) -> list[str]:
        """As in the conversion, but the arguments of a function of this stage are gathered for its call."""
        if operation not in self._asked:
            return super().operation(operation, names)
        call = self._calls.call_of(operation)
        row = f"counts[{call.number}]"
        given = [self._slots[operation.number]]
        given += [self.variable(operation.operands[argument]) for argument in operation.function.values]
        test = ["reason == 0"]
        test += [f"{self.variable(each)} != NULL" for each in operation.operands.values() if type_of(each).is_nullable]
        return [
            f"if {' and '.join(test)}:  # {shown(operation.function.name)}",
            *(f"    asked[{call.column + place} * room + {row}] = {value}" for place, value in enumerate(given)),
            f"    {row} += 1",
        ]


class GatheringWriter(MessageWriter):
    """The lines that gather one stage's arguments from one source message."""

    def __init__(
        self,
        table: ConverterTable,
        source: SourceMessageType,
        conversions: Sequence[Conversion],
        data: TableData,
        calls: PacketCalls,
        stage: int,
    ) -> None:
        super().__init__(table, source, [calls.reduced(conversion, stage) for conversion in conversions], data)
        self._whole = conversions
        self._stage = stage
        self._asked = [set(calls.uses_in(conversion, stage)) for conversion in conversions]
        has_block = self._framing.block_length is not None
        self._values = [
            _GatheringValues(
                number,
                frozenset(each.each.fields if each.each else ()),
                data,
                has_block,
                slots_of(number, each),
                self._asked[number],
                calls,
                self._numbers,
            )
            for number, each in enumerate(conversions)
        ]

    @property
    def has_arguments(self) -> bool:
        """True if there is anything to gather."""
        return any(self._asked)

    def gathering_lines(self) -> list[str]:
        """The lines that gather the message's arguments."""
        lines = [f"# {shown(self._source.name)}"]
        if not self._is_fixed:
            lines += walk(self._source, self._needed)
        body = [*self._take_slots(), *self._load_body(), *self._check()]
        return [*lines, *(body if self._is_fixed else ["if reason == 0:", *indented(body)])]

    def _take_slots(self) -> list[str]:
        """The first stage assigns the slots."""
        lines: list[str] = []
        if self._stage == 0:
            lines += [
                f"more = used + {slots_needed(self._source, self._whole)}",
                "if more > room:",
                "    return index, more if index == 0 else used",
                "slots[index] = used",
                "used = more",
            ]
        return [*lines, *slot_lines(self._source, self._whole, "slots[index]")]

    def _check_one(self, number: int, conversion: Conversion) -> list[str]:
        """A failure in one conversion or entry does not keep the others from being gathered or walked over."""
        return [*super()._check_one(number, conversion), "reason = 0"] if self._asked[number] else []

    def _per_entry(self, number: int, conversion: Conversion, lines: list[str]) -> list[str]:
        return super()._per_entry(number, conversion, lines) if lines else []

    def _pure(self, number: int, conversion: Conversion) -> tuple[list[str], list[str]]:
        """As in the conversion, compute what any of its guards needs, whatever the other guards say."""
        _, guarding = needed(guard.operand for guard in self._whole[number].guards)
        return split_pure(self._values[number], conversion.pure, guarding)
