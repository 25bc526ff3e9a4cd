"""Random source formats, tables and messages. A table grows element by element; an element that the loader refuses is
left out. So kernel and interpreter must agree on everything that the loader accepts."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.conversion import ConverterTable, converter_function
from tandemfeed.adapter.conversion.loading.converter_loading import load_checked_table
from tandemfeed.adapter.conversion.table.user_functions import register
from tandemfeed.feedcore.documents.source_format import load_source_format
from tandemfeed.feedcore.documents.source_layout import SourceData, SourceFormat, SourceGroup, SourceMessageType
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tandemfeed.feedcore.wire.source_packet import encode_source_header
from tests.conversion.random_groups import GroupGrower, Grown, Lines

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in range(8, 65, 8)]
EXPONENTS = range(-6, 4)
FRAMINGS = (
    "",
    '<framing headerSize="4" length="uint16" lengthAdds="2" type="char" typeOffset="2" byteOrder="bigEndian"/>',
    '<framing headerSize="0" length="uint8" lengthUnit="4" type="uint8" typeOffset="1"/>',
    '<framing headerSize="8" length="uint16" type="uint16" typeOffset="4" blockLength="uint16" blockLengthOffset="2"/>',
)
MODEL = """<messageSchema package="x" id="7" version="2" byteOrder="littleEndian"><types>
<composite name="messageHeader"><type name="blockLength" primitiveType="uint16"/>
<type name="templateId" primitiveType="uint16"/><type name="schemaId" primitiveType="uint16"/>
<type name="version" primitiveType="uint16"/></composite>
{types}
<type name="Text" primitiveType="char" length="60"/>
<composite name="groupSizeEncoding"><type name="blockLength" primitiveType="uint16"/>
<type name="numInGroup" primitiveType="uint8"/></composite>
<composite name="few"><type name="numInGroup" primitiveType="uint32" maxValue="3"/>
<type name="blockLength" primitiveType="uint16" offset="5"/></composite>
<composite name="text"><type name="length" primitiveType="uint16"/>
<type name="varData" primitiveType="uint8" length="0"/></composite>
</types>
{messages}
</messageSchema>"""


def model_types() -> str:
    decimals = "".join(
        f'<composite name="D{exponent + 9}"><type name="mantissa" primitiveType="int64"{presence}/>'
        f'<type name="exponent" primitiveType="int8" presence="constant">{exponent}</type></composite>'
        for exponent in EXPONENTS
        for presence in [' presence="optional" nullValue="-77"']
    )
    plain = "".join(
        f'<type name="O{kind}" primitiveType="{kind}" presence="optional"/>'
        f'<type name="R{kind}" primitiveType="{kind}"/>'
        for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float", "double")
    )
    return decimals + plain


TYPES = ["Text", *(f"D{exponent + 9}" for exponent in EXPONENTS)]
TYPES += [f"{how}{kind}" for kind in ("int64", "uint64", "uint8", "int32", "float", "double") for how in "OR"]
TABLE_HEAD = """<converterTable name="x" sourceFormat="x" keysMax="40">
<map name="numbers" default="5"><entry from="1" to="10"/><entry from="0" to="-3"/><entry from="255" to="7"/></map>
<map name="strict"><entry from="0" to="1"/><entry from="1" to="2"/></map>
<map name="names" default="other"><entry from="A" to="alpha beta"/><entry from="12" to="x"/></map>
<map name="texts" default="9" keys="text"><entry from="A" to="1"/><entry from="12" to="2"/></map>
<map name="symbols"><entry from="A" to="1"/><entry from="ALPHA LO" to="2"/><entry from="ALPHA LONG KEY" to="3"/>
<entry from="ALPHA LONG KEY, EVE" to="-4"/><entry from=" " to="5"/></map>
<map name="long_names" default="none of these, at all"><entry from="12" to="x"/><entry from="ALPHA LO" to="beta"/>
<entry from="ALPHA LONG KEY" to="a name of more than eight bytes"/></map>
<book name="book" exponent="-2" ordersMax="25" ids="{ids}"/>
"""

MAPS = ["numbers", "strict", "names", "texts", "symbols", "long_names"]


@converter_function(minimum=-(2**40), maximum=2**40)
def compiled_mix(of: int, other: int) -> int:
    """A function that numba can compile."""
    if other == 200:
        raise ValueError("two hundred")
    return of & other


@converter_function(minimum=-2, maximum=2**63 - 2)
def python_mix(of: int, other: int) -> int:
    """A function that numba cannot compile."""
    return int(Decimal(of).logb()) - [other, 3, 5][other % 7]


@converter_function(minimum=-(2**60), maximum=2**40, per_packet=True)
def array_mix(of: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[Any]:
    """A function of arrays; for some values it raises, for others it returns too few results."""
    if (other == 65).any():
        raise ValueError("sixty-five")
    mixed = np.where(other == 0, 5, of ^ other)
    return mixed[of != 1]


USERS = {"compiled_mix": compiled_mix, "python_mix": python_mix, "array_mix": array_mix}


@dataclass
class Documents:
    """Three documents under construction, as text."""

    source_format: str = ""
    converts: list[Lines] = field(default_factory=list)
    outputs: list[Lines] = field(default_factory=list)
    ids: str = "unique"  # the scope of the ids of the book's orders

    def load(self, folder: Path) -> ConverterTable:
        messages = "".join(
            f'<message name="out{number}" id="{number + 1}">{"".join(map(str, fields))}</message>'
            for number, fields in enumerate(self.outputs)
        )
        converts = "".join(str(line) for lines in self.converts for line in [*lines, "</convert>\n"])
        texts = {
            "format.xml": self.source_format,
            "model.xml": MODEL.format(types=model_types(), messages=messages or '<message name="out0" id="1"/>'),
            "table.xml": TABLE_HEAD.format(ids=self.ids) + converts + "</converterTable>",
        }
        for name, text in texts.items():
            (folder / name).write_text(text)
        return load_checked_table(folder / "format.xml", folder / "table.xml", folder / "model.xml")


def random_field(random: Random, name: str) -> str:
    kind = random.choice([*INTEGERS, *INTEGERS, "char", "char", "char", "float", "double"])
    text = f'<field name="{name}" type="{kind}"'
    if kind == "char":
        text += f' length="{random.choice([1, 1, 2, 5, 8, 8, 9, 16, 20])}"'
    elif "int" in kind:
        text += f' exponent="{random.choice([0, 0, -2, -2, -4, 1])}"'
        if random.random() < 0.3:
            text += f' null="{random.choice([0, 1, 127, 255 if kind != "int8" else -1])}"'
    if random.random() < 0.3:
        text += f' byteOrder="{random.choice(["bigEndian", "littleEndian"])}"'
    return text + "/>"


def random_format(random: Random) -> str:
    framing = random.choice(FRAMINGS)
    lines = [f'<sourceFormat name="x" byteOrder="{random.choice(["bigEndian", "littleEndian"])}">{framing}']
    for number in range(random.randint(1, 3)):
        lines.append(f'<message name="m{number}" type="{65 + number}">')
        if framing == FRAMINGS[2]:
            lines.append('<field name="length" type="uint8"/><field name="kind" type="uint8"/>')
        lines += [random_field(random, f"a{place}") for place in range(random.randint(2, 7))]
        if random.random() < 0.6 and framing != FRAMINGS[2]:
            count = random.choice(['count="3"', 'count="uint8"', 'headerSize="4" count="uint16" countOffset="2"'])
            if "uint16" in count:
                count += ' entrySize="uint16"'
            lines.append(f'<group name="g" {count}>')
            lines += [random_field(random, f"g{place}") for place in range(random.randint(1, 4))]
            lines += random_inside(random) if random.random() < 0.5 else []
            lines.append("</group>")
            if random.random() < 0.4:
                lines.append('<group name="h" count="uint8">')
                lines += [random_field(random, f"h{place}") for place in range(random.randint(1, 3))] + ["</group>"]
        if random.random() < 0.5 and framing != FRAMINGS[2]:
            most = random.choice(["", ' maxLength="5"', ' maxLength="9"', ' maxLength="8" headerSize="3"'])
            lines.append(f'<data name="d" length="{random.choice(["uint8", "uint16"])}"{most}/>')
        lines.append("</message>")
    return "\n".join([*lines, "</sourceFormat>"])


def random_inside(random: Random) -> list[str]:
    """The parts of each entry of a group."""
    lines = []
    if random.random() < 0.7:
        lines.append(f'<group name="k" count="{random.choice(["uint8", "uint8", "2"])}">')
        lines += [random_field(random, f"k{place}") for place in range(random.randint(1, 2))]
        lines += ['<data name="e" length="uint8" maxLength="8"/>'] if random.random() < 0.3 else []
        lines.append("</group>")
    if random.random() < 0.6:
        most = random.choice(["", ' maxLength="6"'])
        lines.append(f'<data name="c" length="uint8"{most}/>')
    return lines


def random_element(random: Random, names: list[str], name: str) -> str:
    def one() -> str:
        return random.choice(names)

    by = random.choice([one(), one(), f"{one()} {one()}"])
    state = f'by="{by}"' + random.choice(["", ' reset="session"'])
    return f'<let name="{name}" ' + random.choice(
        [
            f'function="copy" of="{one()}"/>',
            f'function="constant" value="{random.choice([0, -5, 70000])}" exponent="-2"/>',
            f'function="constant" text="{random.choice(["x", "a longer constant text"])}"/>',
            f'function="scale" of="{one()}" exponent="{random.choice(list(EXPONENTS))}" '
            f'rounding="{random.choice(["exact", "floor", "half_up"])}"/>',
            f'function="cast" of="{one()}" type="{random.choice(["int8", "uint8", "uint32", "int64", "int32"])}" '
            f'otherwise="{random.choice(["refuse", "null", "clamp"])}"/>',
            f'function="increase" of="{one()}" amount="{random.choice([1, -300, 2**40])}"/>',
            f'function="default" of="{one()}" value="{random.choice([0, -1, 5])}"/>',
            f'function="null_if" of="{one()}" value="{random.choice([0, 1, 255])}"/>',
            f'function="bits" of="{one()}" shift="{random.choice([0, 3])}" mask="{random.choice([1, 15, 2**33])}"/>',
            f'function="timestamp" of="{one()}" unit="{random.choice(["s", "ms", "us", "ns"])}"/>',
            f'function="since_midnight" of="{one()}" unit="{random.choice(["s", "ns"])}" zone="America/New_York"/>',
            f'function="number" of="{one()}" exponent="{random.choice([0, -2, -9])}"/>',
            f'function="choose" of="{one()}" {random.choice(["is", "above", "atMost"])}="{random.choice([0, 1, 200])}" '
            f'then="{one()}" otherwise="{one()}"/>',
            f'function="choose" of="{one()}" isNot="A" then="{one()}" otherwise="{one()}"/>',
            f'function="choose" of="{one()}" isNull="true" then="{one()}" otherwise="{one()}"/>',
            f'function="map" of="{one()}" map="{random.choice(MAPS)}"/>',
            f'function="text" of="{one()}" length="{random.choice([1, 3, 5, 8])}"/>',
            f'function="text" of="{one()}"/>',
            *(f'function="{function}" of="{one()}" other="{one()}"/>' for function in USERS),
            f'function="cut" of="{one()}" length="{random.choice([1, 2, 3])}"/>',
            f'function="digits" of="{one()}"/>',
            f'function="concatenate" of="{one()} {one()}" separator="{random.choice(["", ".", "--"])}"/>',
            *(
                f'function="{function}" of="{one()}" cell="{name}" {state}/>'
                for function in ("sum", "max", "min", "first", "last", "wide_sum")
            ),
            f'function="count" cell="{name}" {state}/>',
            f'function="vwap" of="{one()}" weight="{one()}" cell="{name}" {state}/>',
            f'function="wide_vwap" of="{one()}" weight="{one()}" cell="{name}" {state}/>',
            f'function="decimal" of="{one()}" exponent="{random.choice([0, -2, -9])}" '
            f'rounding="{random.choice(["exact", "floor", "half_up"])}" '
            f'otherwise="{random.choice(["refuse", "null"])}"/>',
            f'function="double" of="{one()}"/>',
            f'function="best_bid" of="{one()}" source="{one()}" sources="3" cell="{name}" {state}/>',
            f'function="best_ask" of="{one()}" source="{one()}" sources="2" cell="{name}" {state}/>',
            f'function="peek" cell="c{random.randrange(12)}" by="{by}"/>',
            *(
                f'function="book_{what}" book="book" side="{random.choice(["bid", "ask"])}" '
                f'level="{random.choice([1, 1, 2])}" by="{one()}"/>'
                for what in ("price", "size", "orders")
            ),
        ]
    )


def random_order(random: Random, names: list[str]) -> str:
    def one() -> str:
        return random.choice(names)

    action = random.choice(["add", "add", "modify", "reduce", "delete", "replace", "clear"])
    text = f'<order book="book" action="{action}" by="{one()}"'
    text += "" if action == "clear" else f' id="{one()}"'
    text += f' newId="{one()}"' if action == "replace" else ""
    text += f' side="{one()}" bid="65"' if action in ("add", "modify") else ""
    text += f' price="{one()}"' if action in ("add", "modify", "replace") else ""
    text += "" if action in ("clear", "delete") else f' size="{one()}"'
    return text + random.choice(["/>", f' if="{one()}" above="0"/>', f' if="{one()}" is="A"/>'])


def random_documents(random: Random, folder: Path) -> tuple[Documents, ConverterTable]:
    """Random documents and the table loaded from them, which has at least one conversion."""
    for name, function in USERS.items():
        register(name, function)
    documents = Documents(random_format(random), ids=random.choice(["unique", "perBook"]))
    table: ConverterTable | None = None

    def attempt(change: str | Grown, lines: Lines) -> bool:
        nonlocal table
        lines.append(change)
        try:
            table = documents.load(folder)
        except DocumentError:
            lines.pop()
            return False
        return True

    (folder / "format.xml").write_text(documents.source_format)
    source = load_source_format(folder / "format.xml")
    for number, message in enumerate(random.choices(list(source.messages.values()), k=random.randint(1, 4))):
        paths = [[group] for group in message.groups.values()]
        paths += [[*path, inner] for path in paths for inner in path[-1].groups.values()]
        path = random.choice(paths) if paths and random.random() < 0.6 else []
        each = f' each="{".".join(group.name for group in path)}"' if path else ""
        inside = [name for group in path for name in (*group.fields, *group.data)]
        names = [*message.fields, *inside, *2 * list(message.data), "packet.session"]
        convert: Lines = [f'<convert message="{message.name}" to="out{number}"{each}>']
        output: Lines = ['<field name="first" id="99" type="Ruint8"/>']
        documents.converts.append(convert)
        documents.outputs.append(output)
        convert.append(
            '<let name="zero" function="constant" value="0"/><field name="first" function="copy" of="zero"/>'
        )
        table = documents.load(folder)
        names.append("zero")
        for place in range(random.randint(4, 14)):
            name = f"c{number * 3 + place}"
            if random.random() < 0.25:
                attempt(random_order(random, names), convert)
            if random.random() < 0.1:
                attempt(f'<when of="{random.choice(names)}" {random.choice(["above", "isNot"])}="0"/>', convert)
            if not attempt(random_element(random, names, name), convert):
                continue
            names.append(name)
            for kind in random.sample(TYPES, len(TYPES)):
                output.append(f'<field name="f{name}" id="{place}" type="{kind}"/>')
                if attempt(f'<field name="f{name}" function="copy" of="{name}"/>', convert):
                    break
                output.pop()
        grower = GroupGrower(random, [path[-1] for path in paths], attempt, random_element, TYPES)
        for _ in range(random.choice([0, 0, 1, 2])):
            grower.grow(convert, output, names)
        grower.data(convert, output, names)
    assert table is not None
    return documents, documents.load(folder)


def random_bytes(random: Random, size: int) -> bytes:
    kind = random.random()
    if kind < 0.3:
        return random.choice([0, 0, 1, 1, 2, 65, 200]).to_bytes(size, random.choice(["big", "little"]))
    if kind < 0.5:
        texts = [
            b"A",
            b"12",
            b"-1.5",
            b" 7",
            b"",
            b"1 2",
            b"99999999999",
            b"B",
            b"ALPHA LONG KEY, EVE",
            b"ALPHA LONG KEY",
        ]
        return random.choice(texts)[:size].ljust(size, random.choice([b" ", b"\0"]))
    if kind < 0.6:
        return bytes([random.choice([0, 127, 128, 255])]) + bytes([random.choice([0, 255])]) * (size - 1)
    return random.randbytes(size)


def random_block(random: Random, fields: list[int]) -> bytes:
    return b"".join(random_bytes(random, size) for size in fields)


def random_message(random: Random, source_format: SourceFormat, message: SourceMessageType) -> bytes:
    """One frame, which is valid most of the time."""
    framing = message.framing
    order = "big" if framing.is_big_endian else "little"
    block = random_block(random, [each.size for each in message.fields.values()]).ljust(message.size, b"\1")
    if framing.block_length is not None and random.random() < 0.2:
        block = block[: random.randint(0, len(block))] if random.random() < 0.5 else block + random.randbytes(3)
    body = block
    for part in message.parts:
        body += _random_part(random, part)
    if framing.length_unit > 1:
        body = body.ljust(-(-len(body) // framing.length_unit) * framing.length_unit, b"\0")
    if random.random() < 0.06:
        body = body[: random.randint(0, len(body))]
    if random.random() < 0.03:
        body += b"x" * framing.length_unit
    frame = bytearray(bytes(framing.header_size) + body)
    if len(frame) < framing.size_min:
        frame = frame.ljust(framing.size_min, b"\0")
    frame += bytes(-len(frame) % framing.length_unit)
    kind = message.type_id if random.random() < 0.97 else random.randint(60, 80)

    def put(offset: int, size: int, value: int) -> None:
        frame[offset : offset + size] = (value & ((1 << (8 * size)) - 1)).to_bytes(
            size, "big" if order == "big" else "little"
        )

    if framing.block_length is not None:
        put(framing.block_length.offset, framing.block_length.size, len(block))
    put(framing.type.offset, framing.type.size, kind)
    put(framing.length.offset, framing.length.size, (len(frame) - framing.length_adds) // framing.length_unit)
    return bytes(frame)


def _random_part(random: Random, part: SourceGroup | SourceData) -> bytes:
    if isinstance(part, SourceData):
        text = random_bytes(random, random.choice([1, 2, 5, 8, 9])) if random.random() < 0.9 else b""
        length = len(text) if random.random() < 0.95 else 255
        header = length.to_bytes(part.length_kind.size, "big" if part.is_big_endian else "little")
        return header.ljust(part.header_size, b"\7") + text
    count = part.count if isinstance(part.count, int) else random.randint(0, 4)
    entries = b""
    for _ in range(count):
        entries += random_block(random, [each.size for each in part.fields.values()])
        entries += b"".join(_random_part(random, inner) for inner in part.parts)
    if isinstance(part.count, int):
        return entries
    header = bytearray(part.header_size)
    entry_count = count if random.random() < 0.95 else random.choice([200, 65_535])

    def put(offset: int, size: int, value: int) -> None:
        value &= (1 << (8 * size)) - 1
        header[offset : offset + size] = value.to_bytes(size, "big" if part.is_big_endian else "little")

    put(part.count.offset, part.count.size, entry_count)
    if part.entry_size is not None:
        put(part.entry_size.offset, part.entry_size.size, part.size if random.random() < 0.95 else 1)
    return bytes(header) + entries


def random_packet(random: Random, source_format: SourceFormat, count: int) -> bytes:
    messages = list(source_format.messages.values())
    frames = [random_message(random, source_format, random.choice(messages)) for _ in range(count)]
    header = encode_source_header(
        feed_id=1,
        source_stream_id=1,
        message_count=count,
        session=random.choice([20_261_121, 20_261_121, 20_260_301, 20_261_131, 0]),
        first_source_seq=1,
        sent_at_ns=5,
    )
    return header + b"".join(frames)
