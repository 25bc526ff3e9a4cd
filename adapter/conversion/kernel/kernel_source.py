"""Generates the Python source of a table's kernel: specialised, one branch per message type, readable when printed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tandemfeed.adapter.conversion.kernel.calls.kernel_gathering import GATHER, GatheringWriter
from tandemfeed.adapter.conversion.kernel.calls.packet_calls import PacketCalls
from tandemfeed.adapter.conversion.kernel.kernel_names import in_variable, shown, shown_title
from tandemfeed.adapter.conversion.kernel.kernel_tables import TableData
from tandemfeed.adapter.conversion.kernel.lines.kernel_foresight import Foresight
from tandemfeed.adapter.conversion.kernel.lines.kernel_messages import MessageWriter
from tandemfeed.adapter.conversion.kernel.lines.kernel_operations import indented
from tandemfeed.adapter.conversion.kernel.unaligned import load_expression
from tandemfeed.adapter.conversion.state.state_store import header_of
from tandemfeed.adapter.conversion.table.functions import Calling, ConverterFunction
from tandemfeed.adapter.conversion.table.reasons import Reason
from tandemfeed.adapter.conversion.table.table import Conversion, ConverterTable, all_operations
from tandemfeed.feedcore.documents.packet_numbers import filler_type
from tandemfeed.feedcore.documents.primitive_types import Place
from tandemfeed.feedcore.documents.source_layout import Framing
from tandemfeed.feedcore.wire.source_packet import SOURCE_HEADER_SIZE, SOURCE_LAYOUT

MODULE = '''"""Generated from the converter table {name}{tables}.

Values are int64, a uint64 keeps its bits, NULL is null; every read of `datagram` follows a comparison with the
frame's length.
"""

from numba import types

from tandemfeed.adapter.conversion.kernel.kernel_parts import *  # noqa: F403
from tandemfeed.adapter.conversion.state.doubles import *  # noqa: F403
from tandemfeed.adapter.conversion.state.order_book import *  # noqa: F403
from tandemfeed.adapter.conversion.state.state_kernels import (
    HINTS_MAX,
    KEY,
    LIVE_COUNT,
    NEAR_ROWS,
    SAMPLE_COUNT,
    fetch_rows,
    find_row,
    foresee_row,
    hash_of,
    hash_of_key,
    settle_down,
)
from tandemfeed.adapter.conversion.state.wide_numbers import *  # noqa: F403
from tandemfeed.adapter.conversion.kernel.unaligned import LOADS, STORES, store_image
from tandemfeed.adapter.conversion.table.user_functions import compiled_user
from tandemfeed.adapter.kernel_cache import compiled, kernel_part

globals().update(LOADS)
globals().update(STORES)
DATAGRAM = types.Array(types.uint8, 1, "C", readonly=True)
BYTES = types.Array(types.uint8, 1, "C")
WORDS = types.Array(types.int64, 1, "C")
TABLES = types.Array(types.int64, 1, "C", readonly=True)
ANSWER = types.UniTuple(types.int64, 4)
MASK32 = 0xFFFF_FFFF
{constants}
{functions}

@compiled(types.boolean(DATAGRAM))
def check(datagram):
    """True if the frames fill the packet exactly and match its message count."""
    if datagram.size < {header}:
        return False
    count = {message_count}
    position = {header}
    for _ in range(count):
        if position + {least} > datagram.size:
            return False
        length = {length}
        if length < {least}:
            return False
        position += length
    return position == datagram.size


@compiled(ANSWER(DATAGRAM, types.intp, types.intp, BYTES, types.intp, types.intp, WORDS, TABLES{answered_types}))
def convert(datagram, skip, count, out, start, end, arena, tables{answered}):
    """Convert `count` messages from `skip` on; returns (consumed, written, end, refused)."""
    if datagram.size < {header}:
        return count, 0, start, 0
    position = types.int64({header})  # a literal would compile each message's function twice
    session = {session}
    sent_at_ns = {sent_at_ns}
{midnights}    arena[SAMPLE_COUNT] = 0
    cursor = start
    written = 0
    refused = 0
    for _ in range({first}):
        if position + {least} <= datagram.size:
            position += {length}
{foresees}    index = {done}
    while index < {ready}:
        if position + {least} > datagram.size:
            arena[TRUNCATED] += count - index
            return count, written, cursor, refused + count - index
        length = {length}
        if length < {least} or position + length > datagram.size:
            note_bad(arena, position, index, TRUNCATED)
            arena[TRUNCATED] += count - index - 1
            return count, written, cursor, refused + count - index
        kind = {kind}
        body = position + {body}
        limit = position + length
        reason = 0
'''

# With more conversions than this, each message type becomes a function, because compilers are slow on long functions.
CONVERSIONS_INLINE_MAX = 6
# With users' functions called in Python, a packet is converted in parts; each part when all its answers are available.
ANSWERED = {
    "answered_types": ", types.intp, types.intp, WORDS, WORDS",
    "answered": ", done, ready, slots, answers",
    "first": "skip + done",
    "done": "done",
    "ready": "ready",
}
NOT_ANSWERED = {"answered_types": "", "answered": "", "first": "skip", "done": "types.int64(0)", "ready": "count"}
GIVEN = "datagram, position, length, out, cursor, end, written, index, session, sent_at_ns, arena, tables"

# An exception in a user's function refuses the message; it does not end the kernel.
USER = '''user_{name} = compiled_user({name!r})  # its source: {digest}


@kernel_part
def try_{name}({given}):
    """Call a user's function; returns (result, failed)."""
    try:
        return np.int64(user_{name}({given})), False
    except Exception:
        return np.int64(0), True

'''

FOOTER = """
        if reason != 0:
            note_bad(arena, position, index, reason)
            refused += 1
        position += length
        index += 1
    return index, written, cursor, refused
"""


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A generated kernel.

    Attributes:
        tables: the words of maps, zones and literals that the kernel reads.
        zones: the zones whose midnight it computes from the session.
    """

    text: str
    tables: tuple[int, ...]
    zones: tuple[str, ...]

    @property
    def function_count(self) -> int:
        """The number of functions to compile, without those that they call in other modules."""
        return self.text.count("\n@compiled") + self.text.count("\n@kernel_part")


def _framed(framing: Framing, place: Place) -> str:
    return load_expression(place.size, f"position + {place.offset}", is_big_endian=framing.is_big_endian)


def _of_header(name: str, *, signed: bool = False) -> str:
    """The expression that loads a field of the source packet's header."""
    size = SOURCE_LAYOUT.part(name).size
    return load_expression(size, str(SOURCE_LAYOUT.offsets[name]), signed=signed)


# Numbers instead of imported names: a cached kernel is found by its text and by the digest of the conversion's sources,
# and neither changes with a constant of feedcore.
HEADER = {
    "header": str(SOURCE_HEADER_SIZE),
    "message_count": _of_header("message_count"),
    "session": _of_header("session"),
    "sent_at_ns": _of_header("sent_at_ns", signed=True),
}


def _length(framing: Framing) -> str:
    text = _framed(framing, framing.length)
    text = f"{text} * {framing.length_unit}" if framing.length_unit != 1 else text
    return f"{text} + {framing.length_adds}" if framing.length_adds else text


def kernel_source(table: ConverterTable) -> KernelSource:
    """Generate the source of a table's kernel."""
    data = TableData()
    framing = table.source_format.framing
    by_message: dict[str, list[Conversion]] = {}
    for conversion in table.conversions:
        by_message.setdefault(conversion.source.name, []).append(conversion)
    writers = [MessageWriter(table, each[0].source, each, data) for each in by_message.values()]
    is_split = len(table.conversions) > CONVERSIONS_INLINE_MAX
    bodies = [writer.lines("return cursor, written, FULL" if is_split else "break") for writer in writers]
    foresight = Foresight(table)
    for writer, conversions in zip(writers, by_message.values(), strict=True):
        foresight.add(conversions[0].source, writer.condition(), conversions)
    walking = {
        "least": framing.size_min,
        "length": _length(framing),
        "kind": _framed(framing, framing.type),
        "body": framing.header_size,
    }
    calls = PacketCalls(table.conversions)
    stages = [_stage(table, by_message.values(), data, calls, stage) for stage in range(calls.stages)]
    zones = [f"midnight_{number}" for number in range(len(data.zones))]
    given = ", ".join([GIVEN, *(["done, slots, answers"] if calls else []), *zones])
    functions = ""
    if is_split:
        for number, (writer, body) in enumerate(zip(writers, bodies, strict=True)):
            functions += _function(number, writer, body, given, framing.header_size)
            bodies[number] = [f"cursor, written, reason = message_{number}({given})"]
    branches = _branches(writers, bodies) + _otherwise(table)
    branches += ["if reason == FULL:", "    break"] if is_split else []
    frame = {"midnights": _midnights(data), **HEADER, **walking}
    text = MODULE.format(
        name=shown_title(table.name),
        tables=f", with reference tables {data.digest()}" if data.words else "",
        constants=_constants(table),
        functions=functions + foresight.function(**walking),
        foresees=foresight.call(),
        **frame,
        **(ANSWERED if calls else NOT_ANSWERED),
    )
    text += "\n".join(indented(branches, 2)) + FOOTER
    for stage, lines in enumerate(stages):
        text += GATHER.format(stage=stage, branches="\n".join(indented(lines, 2)), **frame)
    return KernelSource(text, tuple(data.words), tuple(data.zones))


def _midnights(data: TableData) -> str:
    """The lines that compute each zone's midnight of the session."""
    return "".join(
        f"    midnight_{number} = midnight_of(session, tables, {at}, {count})  # {shown_title(zone)}\n"
        for number, (zone, (at, count)) in enumerate(data.zones.items())
    )


def _branches(writers: Iterable[MessageWriter], bodies: Iterable[list[str]]) -> list[str]:
    """A branch for each message type."""
    lines: list[str] = []
    for writer, body in zip(writers, bodies, strict=True):
        lines += [f"{'elif' if lines else 'if'} {writer.condition()}:", *indented(body)]
    return lines


def _stage(
    table: ConverterTable, messages: Iterable[list[Conversion]], data: TableData, calls: PacketCalls, stage: int
) -> list[str]:
    """The branches of a kernel that gathers the arguments of one stage's calls."""
    writers = [GatheringWriter(table, each[0].source, each, data, calls, stage) for each in messages]
    writers = [writer for writer in writers if writer.has_arguments]
    return _branches(writers, [writer.gathering_lines() for writer in writers])


def _function(number: int, writer: MessageWriter, body: list[str], given: str, header_size: int) -> str:
    """The code of one message type as a function."""
    head = [
        "",
        "@kernel_part",
        f"def message_{number}({given}):",
        f'    """Convert one {shown(writer.name)}; returns (end, written, reason)."""',
        f"    body = position + {header_size}",
        "    limit = position + length",
        "    reason = 0",
    ]
    return "\n".join([*head, *indented(body), "    return cursor, written, reason", "", ""])


def _constants(table: ConverterTable) -> str:
    users = _users_functions(table)
    lines = [f"{reason.name} = {int(reason)}" for reason in Reason if users or reason is not Reason.FUNCTION_FAILED]
    lines += ["FULL = -1"]  # not a reason to refuse the message
    for number, space in enumerate(table.spaces):
        lines.append(f"SPACE_{number} = {header_of(number)}  # state by {_space_name(space.name)}")
    for function in users:
        name, given = in_variable(function.name), ", ".join(in_variable(value) for value in function.values)
        if function.is_per_packet:
            how = "with arrays" if function.calling is Calling.PER_ARRAY else "value by value"
            details = f"within {function.low} to {function.high}, its source: {function.source_digest}"
            lines.append(f"# {name}({given}) is called per packet, {how}; {details}")
        else:
            lines.append(USER.format(name=name, digest=function.source_digest, given=given))
    return "\n".join(lines)


def _space_name(name: str) -> str:
    """The names in a key space's name: the parts of its key, or a book and its contents."""
    return " ".join(shown(each) for each in name.split())


def _users_functions(table: ConverterTable) -> list[ConverterFunction]:
    """The users' functions that a table uses, sorted by name."""
    used = {
        operation.function.name: operation.function
        for conversion in table.conversions
        for operation in all_operations(conversion)
        if operation.function.python is not None
    }
    return [used[name] for name in sorted(used)]


def _otherwise(table: ConverterTable) -> list[str]:
    """The branches of messages that no conversion takes."""
    converted = {conversion.source.type_id for conversion in table.conversions}
    others = sorted({message.type_id for message in table.source_format.messages.values()} - converted)
    lines = [
        f"elif {' or '.join(f'kind == {kind}' for kind in sorted(converted))}:",
        "    reason = WRONG_LENGTH",
    ]
    if others:
        lines += [
            f"elif {' or '.join(f'kind == {kind}' for kind in others)}:",
            "    arena[NOT_CONVERTED] += 1",
        ]
    filler = filler_type(table.source_format)
    if filler is not None:
        assert table.source_format.packet is not None
        numbers = table.source_format.packet.messages_max
        lines += [f"elif kind == {filler}:  # nothing has this number, one of the {numbers} of a packet", "    pass"]
    return [*lines, "else:", "    reason = UNKNOWN_TYPE"]
