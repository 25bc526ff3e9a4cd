"""Users' functions that are called once per packet: the calls, the values each one needs, and their order.

Before a packet is converted, there is one pass over it per stage. A stage gathers the arguments of its calls. Then each
function is called once with all of them, and its answers are available to the next stage and to the conversion. A
function that takes another function's answer as an argument belongs to a later stage. Arguments never depend on state;
the loader checks this.

Every use of such a function by a message, or by an entry of its group, has a slot. Slots are numbered in the order of
the packet's messages, and the conversion reads the answer from the slot. If a use is not called, its slot is neither
written nor read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tandemfeed.adapter.conversion.table.function_use import Checked
from tandemfeed.adapter.conversion.table.functions import ConverterFunction
from tandemfeed.adapter.conversion.table.table import Conversion, Operand, Operation
from tandemfeed.adapter.conversion.table.user_functions import null_instead
from tandemfeed.feedcore.documents.source_layout import SourceMessageType
from tandemfeed.feedcore.documents.xml_document import Node


@dataclass(frozen=True, slots=True)
class PacketCall:
    """One call of a function, for all messages of a packet that use it.

    Attributes:
        number: index of the count of its rows.
        stage: it is called after all calls of earlier stages.
        column: the column with the slots of its rows; a column for each of its arguments follows.
    """

    function: ConverterFunction
    number: int
    stage: int
    column: int


class PacketCalls:
    """All calls of a table.

    Attributes:
        columns: the number of columns of all calls together.
    """

    def __init__(self, conversions: Sequence[Conversion]) -> None:
        self._calls: dict[tuple[str, int], PacketCall] = {}
        self._depths: dict[Operation, int] = {}
        self.columns = 0
        for conversion in conversions:
            for operation in conversion.pure:  # in the order of computation
                below = [self._depth(operand) for operand in operation.operands.values()]
                self._depths[operation] = max(below, default=0) + operation.function.is_per_packet
            for operation in uses_of(conversion):
                self._add(operation.function, self._depths[operation] - 1)

    def _depth(self, operand: Operand) -> int:
        """The number of stages that must be done before a value is known."""
        return self._depths.get(operand, 0) if isinstance(operand, Operation) else 0

    def _add(self, function: ConverterFunction, stage: int) -> None:
        if (function.name, stage) not in self._calls:
            self._calls[function.name, stage] = PacketCall(function, len(self._calls), stage, self.columns)
            self.columns += 1 + len(function.values)

    def __bool__(self) -> bool:
        return bool(self._calls)

    @property
    def calls(self) -> tuple[PacketCall, ...]:
        """All calls, in the order of their numbers."""
        return tuple(self._calls.values())

    @property
    def stages(self) -> int:
        """The number of stages."""
        return max((call.stage + 1 for call in self.calls), default=0)

    def call_of(self, operation: Operation) -> PacketCall:
        """The call that computes the answer for a use."""
        return self._calls[operation.function.name, self._depths[operation] - 1]

    def uses_in(self, conversion: Conversion, stage: int) -> list[Operation]:
        """The uses in a conversion whose arguments a stage gathers."""
        return [use for use in uses_of(conversion) if self._depths[use] == stage + 1]

    def reduced(self, conversion: Conversion, stage: int) -> Conversion:
        """A conversion reduced to what a stage needs to gather its arguments.

        It keeps only the guards that can be evaluated at that stage. So a function may be called for a message that
        another guard skips; that answer is not used.
        """
        guards = tuple(guard for guard in conversion.guards if self._depth(guard.operand) <= stage)
        wanted = _made_of([*self.uses_in(conversion, stage), *(guard.operand for guard in guards)])
        return replace(
            conversion,
            target=None,
            guards=guards,
            output_guards=(),
            pure=tuple(operation for operation in conversion.pure if operation in wanted),
            stateful=(),
            writes=(),
            orders=(),
            book_reads=(),
            groups=(),
            data=(),
        )


def checked_use(
    node: Node, function: ConverterFunction, operands: Mapping[str, Operand], checked: Checked, depth: int
) -> Checked:
    """The checked use of a user's function; any other function's is returned unchanged.

    Args:
        depth: the number of nested groups of the source message that the use is in.

    Raises:
        DocumentError: the function is called in Python, and this use does not allow that.
    """
    late = [name for name, operand in operands.items() if isinstance(operand, Operation) and operand.is_stateful]
    if not function.is_per_packet:
        return null_instead(checked) if function.python is not None and late else checked
    called = f"{function.name} is called in Python before a packet is converted ({function.why_called})"
    if late:
        raise node.error(f"{called}, but {late[0]} depends on state, which is not known then")
    if depth > 1:
        raise node.error(f"{called}; it cannot be used per entry of a group in a group")
    return checked


def uses_of(conversion: Conversion) -> list[Operation]:
    """The operations of a conversion that are computed per packet, in the order of their slots."""
    return [operation for operation in conversion.pure if operation.function.is_per_packet]


def _made_of(operands: Sequence[Operand]) -> set[Operation]:
    """All operations that some values depend on, including the values themselves."""
    found: set[Operation] = set()
    waiting = [operand for operand in operands if isinstance(operand, Operation)]
    while waiting:
        operation = waiting.pop()
        found.add(operation)
        waiting += [each for each in operation.operands.values() if isinstance(each, Operation) and each not in found]
    return found


def slot_lines(source: SourceMessageType, conversions: Sequence[Conversion], first: str) -> list[str]:
    """Kernel lines that compute where the slots of each conversion begin.

    Args:
        first: expression of the message's first slot.
    """
    lines, at = [], first
    for number, conversion in enumerate(conversions):
        if uses_of(conversion):
            lines.append(f"slot_{number} = {at}")
            at = f"slot_{number} + {_slot_count(source, conversion)}"
    return lines


def slots_needed(source: SourceMessageType, conversions: Sequence[Conversion]) -> str:
    """Expression of the number of slots that a message takes; empty if it takes none."""
    return " + ".join(_slot_count(source, conversion) for conversion in conversions if uses_of(conversion))


def _slot_count(source: SourceMessageType, conversion: Conversion) -> str:
    uses = len(uses_of(conversion))
    return str(uses) if conversion.each is None else f"{uses} * count_{source.parts.index(conversion.each)}"


def slots_of(number: int, conversion: Conversion) -> dict[int, str]:
    """Expression of the slot of each operation, by its number; valid after `slot_lines`.

    Args:
        number: the index of the conversion among those of its source message.
    """
    uses = uses_of(conversion)
    entry = "" if conversion.each is None else f" + {len(uses)} * entry_number"
    return {use.number: f"slot_{number}{entry} + {place}" for place, use in enumerate(uses)}
