"""A converter table as the Python source of a kernel: specialised, branch by message type, readable when printed."""

from __future__ import annotations

from adapter.conversion.table import Conversion, ConverterTable, Step
from feedcore.message_model import PREFIX_SIZE
from feedcore.primitive_types import PrimitiveType
from feedcore.source_format import SourceField

# Places in the kernel's int64 `registers` array.
COUNT, BAD_TYPE, BAD_LENGTH = range(3)
REGISTER_COUNT = 4

HEADER = '''def convert(datagram, skip, count, out, start, end, slots, keys, state, registers):
    """Generated from the converter table {name!r}."""
    position = SOURCE_HEADER_SIZE
    for _ in range(skip):
        position += load_u16(datagram, position)
    cursor = start
    written = 0
    index = 0
    is_full = 0
    while index < count:
        length = load_u16(datagram, position)
        kind = load_u16(datagram, position + 2)
        body = position + SOURCE_FRAME_SIZE
'''

FOOTER = """        else:
            if {known}:
                registers[BAD_LENGTH] += 1
            else:
                registers[BAD_TYPE] += 1
        position += length
        index += 1
    return index, written, cursor, is_full
"""


def kernel_source(table: ConverterTable) -> str:
    """The kernel's source."""
    text = HEADER.format(name=table.name)
    for number, conversion in enumerate(table.conversions):
        text += _branch(table, conversion, "if" if number == 0 else "elif")
    known = " or ".join(f"kind == {conversion.source.type_id}" for conversion in table.conversions)
    return text + FOOTER.format(known=known)


def _branch(table: ConverterTable, conversion: Conversion, keyword: str) -> str:
    source, target = conversion.source, conversion.target
    lines = [
        f"        {keyword} kind == {source.type_id} and length == {source.frame_size}:",
        f"            # {source.name} -> {target.name}",
        f"            if cursor + {target.frame_size} > end:",
        "                break",
    ]
    if conversion.key is not None:
        lines += [
            f"            key = {_load(conversion.key.kind, conversion.key)}",
            "            slot = find_slot(slots, keys, state, registers, key)",
            "            if slot < 0:",
            "                is_full = 1",
            "                break",
        ]
    loaded: dict[str, str] = {}
    for step in conversion.steps:
        for field in step.sources.values():
            if field.name not in loaded and not (step.function.name == "copy" and field.size not in (1, 2, 4, 8)):
                loaded[field.name] = f"v_{field.name}"
                lines.append(f"            v_{field.name} = {_load(field.kind, field)}")
    for step in conversion.steps:
        lines += [f"            {line.format(**_names(step, loaded))}" for line in step.function.update]
    header = (target.block_length, target.template_id, table.schema_id, table.schema_version)
    lines += [
        f"            store_16(out, cursor, {target.frame_size})",
        "            store_16(out, cursor + 2, index)",
        *(f"            store_16(out, cursor + {4 + 2 * place}, {value})" for place, value in enumerate(header)),
    ]
    for step in conversion.steps:
        lines += _write(step, loaded)
    lines += [f"            cursor += {target.frame_size}", "            written += 1"]
    return "\n".join(lines) + "\n"


def _load(kind: PrimitiveType, field: SourceField) -> str:
    size, offset = field.size, field.offset
    if size not in (1, 2, 4, 8):
        return f"load_bytes(datagram, body + {offset}, {size})"
    sign = "i" if kind.minimum < 0 else "u"
    return f"load_{sign}{8 * size}(datagram, body + {offset})"


def _names(step: Step, loaded: dict[str, str]) -> dict[str, str]:
    names = {argument: loaded[field.name] for argument, field in step.sources.items() if field.name in loaded}
    names |= {f"c{place}": str(column) for place, column in enumerate(step.columns)}
    return names | {"constant": str(step.constant)}


def _write(step: Step, loaded: dict[str, str]) -> list[str]:
    target = step.target
    if target is None:
        return []
    offset = PREFIX_SIZE + target.offset
    of = step.sources.get("of")
    if step.function.name == "copy" and of is not None and of.name not in loaded:
        return [
            f"            for place in range({of.size}):  # {target.name}",
            f"                out[cursor + {offset} + place] = datagram[body + {of.offset} + place]",
        ]
    value = step.function.value.format(**_names(step, loaded))
    return [f"            store_{8 * target.size}(out, cursor + {offset}, {value})  # {target.name}"]
