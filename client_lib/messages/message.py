"""Messages as an application sees them: an object whose attributes are the fields, read from the message's bytes.

`load_messages` makes a class for each message of a message model, once per model. A received message is a view of its
packet: an attribute unpacks one value at a known offset when it is read, and nothing is decoded before. The same
classes build messages, from keyword arguments.

Invariant: a message is read-only, and its attributes equal what `SbeReader` reads from the same bytes
(docs/client.md, "Messages").
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from tandemfeed.client_lib.messages.sbe_reading import EXACT, Buffer, SbeReader, SbeReadError, value_maker, value_reader
from tandemfeed.client_lib.messages.sbe_writing import SbeWriteError, SbeWriter
from tandemfeed.client_lib.messages.stubs import stubs_of
from tandemfeed.client_lib.messages.values import (
    SchemaTypes,
    ValueType,
    as_time,
    attribute_names,
    shown,
    to_plain,
    to_typed,
)
from tandemfeed.feedcore.documents.message_model import PREFIX_SIZE, MessageModel, load_message_model
from tandemfeed.feedcore.sbe.messages import Column, Field, MessageType, constant_exponent
from tandemfeed.feedcore.sbe.types import CompositeType, Presence, SimpleType, may_be_null, time_unit
from tandemfeed.feedcore.wire.output_packet import OUTPUT_FRAME, OUTPUT_FRAME_SIZE
from tandemfeed.feedcore.wire.sbe_header import SBE_HEADER_SIZE, SBE_MESSAGE_HEADER

if TYPE_CHECKING:
    from tandemfeed.client_lib.items import Batch

MODELS_MAX = 64  # models of one process whose classes are kept: versions of the models of the feeds that it reads
VALUES_MAX = 65_536  # of a text or decimal field, kept decoded: more than most markets' symbols, or prices of a day

Getter = Callable[[Any], Any]
M = TypeVar("M")
new_message: Callable[[type[M]], M] = object.__new__


class Origin(NamedTuple):
    """Where a received message comes from.

    Attributes:
        message_seq: its number in the channel; not final if `is_provisional`.
        source_seq: the source message that it was converted from, in its source stream.
        session, epoch: in which it was numbered.
        adapter_id: whose copy arrived first.
        source_sent_at_ns, received_at_ns: wall clocks, when the source and this client handled its packet.
        is_replayed: it came from a replay service.
    """

    channel_id: int
    message_seq: int
    source_stream_id: int
    source_seq: int
    session: int
    epoch: int
    adapter_id: int
    source_sent_at_ns: int
    received_at_ns: int
    is_replayed: bool
    is_provisional: bool


class Message:
    """The base of the classes that `load_messages` makes.

    Their attributes are the model's fields, named as in Python: `event_at` for `eventAt`. A name that Python or this
    class uses (`class`, `raw`) has `_` at its end. Text is `str`, a decimal `Decimal`, a time `numpy.datetime64`, an
    enumeration a `StrEnum`, a null None.

    Args:
        values: the fields by name, to build a message; optional ones may be missing.

    Raises:
        SbeWriteError: a required field is missing, or a value does not fit; the text names the field.
    """

    __slots__ = ("_at", "_batch", "_data", "_fields")

    _class_of: ClassVar[MessageClass]

    # The bytes that contain the message, and where its block begins in them, after the frame and the SBE header.
    _data: bytes
    _at: int
    _batch: Batch | None
    _fields: Mapping[str, Any]  # groups and variable data, once they were read

    def __init__(self, **values: Any) -> None:
        self._data, self._at, self._batch = self._class_of.frame(values), PREFIX_SIZE, None

    @property
    def raw(self) -> Any:
        """The values on the wire, as numpy columns have them: a decimal's mantissa, a time's integer, a null's value.

        A part of a composite is `raw.field_member`. Groups and variable data have none.
        """
        raw = new_message(self._class_of.raw)
        raw._data, raw._at = self._data, self._at
        return raw

    @property
    def origin(self) -> Origin:
        """Where the message comes from.

        Raises:
            ValueError: the message was built, not received.
        """
        if self._batch is None:
            raise ValueError(f"this {type(self).__name__} was built here, not received; it has no origin")
        return self._batch.origin_of(self._at - PREFIX_SIZE)

    def is_same_as(self, other: Message) -> bool:
        """True for another view of the same message, rather than of an equal one."""
        return self._at == other._at and self._data is other._data

    @classmethod
    def from_bytes(cls, data: Buffer) -> Self:
        """The message in an SBE header and body, as `bytes(message)` returns it.

        Raises:
            SbeReadError: it is not a message of this class, or is truncated.
        """
        message = new_message(cls)
        message._data = OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE + len(data), 0) + bytes(data)
        message._at, message._batch = PREFIX_SIZE, None
        made = cls._class_of
        if made.reader.read(data).name != made.type.name:
            raise SbeReadError(f"the message is not a {made.type.name}")
        return message

    def to_dict(self) -> dict[str, Any]:
        """The fields by the model's names; composites are dicts, and groups lists of dicts."""
        return {name: _as_plain(getattr(self, attribute)) for name, attribute in self._class_of.attributes.items()}

    def __bytes__(self) -> bytes:
        start = self._at - SBE_HEADER_SIZE
        return bytes(self._data[start : self._at - PREFIX_SIZE + self._length])

    @property
    def _length(self) -> int:
        length: int = OUTPUT_FRAME.unpack_from(self._data, self._at - PREFIX_SIZE)[0]
        return length

    def __repr__(self) -> str:
        values = (f"{name}={shown(getattr(self, name))}" for name in self._class_of.attributes.values())
        return f"{type(self).__name__}({', '.join(values)})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and bytes(self) == bytes(other)

    def __hash__(self) -> int:
        return hash(bytes(self))

    def __reduce__(self) -> tuple[Any, ...]:
        made = self._class_of
        return _restore, (made.xml, made.type.name, bytes(self))


class MessageClass:
    """One message of a model: what its Python class needs.

    Attributes:
        attributes: the Python name of each field, group and variable data, in the model's order.
        kinds: the types of their values, by the model's names.
        cls: the Python class.
        raw: the class of `Message.raw`.
    """

    def __init__(self, message: MessageType, reader: SbeReader, writer: SbeWriter, types: SchemaTypes, xml: bytes):
        self.type, self.reader, self.xml = message, reader, xml
        self._writer = writer
        self.attributes = attribute_names([*message.fields, *message.groups, *message.data])
        self._names = {attribute: name for name, attribute in self.attributes.items()}
        self.kinds = _kinds(message, types)
        self._ends = sorted((each.since_version, each.offset + each.size) for each in message.fields.values())
        getters = {self.attributes[each.name]: _getter(each, self.kinds[each.name]) for each in message.fields.values()}
        for name in (*message.groups, *message.data):
            getters[self.attributes[name]] = self._whole_getter(name)
        space: dict[str, Any] = {name: property(get) for name, get in getters.items()}
        space |= {"__slots__": (), "_class_of": self, "__doc__": f"The message {message.name}; see `Message`."}
        self.cls: type[Message] = type(message.name, (Message,), space)
        raw_names = attribute_names([name.replace(".", "_") for name in message.columns])
        raw_space: dict[str, Any] = {
            attribute: property(_raw_getter(column))
            for attribute, column in zip(raw_names.values(), message.columns.values(), strict=True)
        }
        raw_space["__slots__"] = ("_at", "_data")
        self.raw: type[Any] = type(f"{message.name}Raw", (), raw_space)

    def frame(self, values: Mapping[str, Any]) -> bytes:
        """A message of these values, with its frame and header; names are Python's or the model's."""
        plain = {}
        for attribute, value in values.items():
            name = self._names.get(attribute, attribute)
            try:
                plain[name] = to_plain(self.kinds[name], value) if name in self.kinds else value
            except ValueError as wrong:
                raise SbeWriteError(f"{self.type.name}.{name}: {wrong}") from None
        body = self._writer.write(self.type.name, plain)
        return OUTPUT_FRAME.pack(OUTPUT_FRAME_SIZE + len(body), 0) + body

    def check(self, data: Buffer, start: int, length: int) -> None:
        """Refuse a frame that is too short for the fields of its schema version.

        Raises:
            SbeReadError.
        """
        block_length, _, _, version = SBE_MESSAGE_HEADER.unpack_from(data, start + OUTPUT_FRAME_SIZE)
        needed = max((end for since, end in self._ends if since <= version), default=0)
        if not needed <= block_length <= length - PREFIX_SIZE:
            raise SbeReadError(
                f"{self.type.name}: the block has {block_length} bytes in a frame of {length}; its fields need {needed}"
            )

    def _whole_getter(self, name: str) -> Getter:
        """Reads groups and variable data, all of a message at once, because their places depend on each other."""
        kind, reader = self.kinds[name], self.reader

        def get(self: Message) -> Any:
            try:
                fields = self._fields
            except AttributeError:
                frame = memoryview(self._data)[self._at - PREFIX_SIZE :][: self._length]
                fields = self._fields = reader.read(frame, OUTPUT_FRAME_SIZE).fields
            return to_typed(kind, fields[name])

        return get


class MessageClasses(Mapping[str, type[Message]]):
    """The classes of a message model, by the name of the message; also as attributes, together with the enumerations.

    Attributes:
        xml: the message model.
        enums: the enumerations, by their names in the model.
    """

    def __init__(self, xml: bytes, document: str) -> None:
        self.xml = xml
        self.model: MessageModel = load_message_model(xml, document)
        schema = self.model.schema
        reader, writer, self.types = SbeReader(schema), SbeWriter(schema), SchemaTypes()
        self.made = {
            name: MessageClass(message, reader, writer, self.types, xml) for name, message in schema.messages.items()
        }
        self.by_template = {each.type.template_id: each for each in self.made.values()}
        self.enums = self.types.enums

    def stubs(self) -> str:
        """A Python module with these classes, typed, for editors and type checkers: what `tandemfeed stubs` writes."""
        return stubs_of(self)

    def __getitem__(self, name: str) -> type[Message]:
        return self.made[name].cls

    def __iter__(self) -> Iterator[str]:
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)

    def __getattr__(self, name: str) -> Any:
        if name in self.made:
            return self.made[name].cls
        if name in self.enums:
            return self.enums[name]
        raise AttributeError(f"the message model has no message or enumeration {name!r}; it has {', '.join(self.made)}")

    def __repr__(self) -> str:
        return f"MessageClasses({', '.join(self.made)})"


def load_messages(model: str | Path | bytes) -> MessageClasses:
    """The classes of a message model's messages; for equal models the same classes.

    Args:
        model: the path of an SBE message schema (XML), or its content.

    Raises:
        DocumentError: with file, line and reason.
        OSError: the file cannot be read.
    """
    return _classes_of(model if isinstance(model, bytes) else Path(model).read_bytes())


@lru_cache(MODELS_MAX)
def _classes_of(xml: bytes) -> MessageClasses:
    return MessageClasses(xml, "message model")


def _restore(xml: bytes, name: str, data: bytes) -> Message:
    return _classes_of(xml)[name].from_bytes(data)


def _kinds(message: MessageType, types: SchemaTypes) -> dict[str, ValueType]:
    kinds = {field.name: types.of(field.type, field.semantic_type) for field in message.fields.values()}
    kinds |= {name: types.of_group(f"{message.name}_{name}", group) for name, group in message.groups.items()}
    return kinds | {
        name: ValueType("str" if data.character_encoding else "bytes") for name, data in message.data.items()
    }


def _as_plain(value: Any) -> Any:
    if hasattr(value, "model_names"):
        return {name: _as_plain(part) for name, part in zip(value.model_names, value, strict=True)}
    if isinstance(value, tuple):
        return [_as_plain(part) for part in value]
    return value


# ---- one attribute: a function that reads it, chosen when the class is made ----


def _getter(field: Field, kind: ValueType) -> Getter:
    if field.presence is Presence.CONSTANT:
        constant = to_typed(kind, field.constant)
        return lambda self: constant
    get = _present_getter(field, kind)
    if not field.since_version:
        return get
    since = field.since_version

    def get_if_there(self: Message) -> Any:
        version = SBE_MESSAGE_HEADER.unpack_from(self._data, self._at - SBE_HEADER_SIZE)[3]
        return get(self) if version >= since else None

    return get_if_there


def _present_getter(field: Field, kind: ValueType) -> Getter:
    """Specialised for what most messages have: numbers, decimals, times and text."""
    columns, encoding = list(field.columns()), field.type
    if len(columns) == 1 and columns[0].length == 1 and columns[0].kind.is_integer:
        column = columns[0]
        if isinstance(encoding, SimpleType):
            unit = time_unit(encoding, field.semantic_type)
            return _integer_getter(column) if unit is None else _time_getter(column, unit)
        if isinstance(encoding, CompositeType) and constant_exponent(encoding) is not None:
            return _decimal_getter(column)
    if isinstance(encoding, SimpleType) and encoding.primitive.name == "char":
        return _text_getter(encoding, columns[0].offset, may_be_null(encoding, field.presence is Presence.OPTIONAL))
    return _general_getter(field, kind)


def _integer_getter(column: Column) -> Getter:
    unpack, offset, null = struct.Struct("<" + column.kind.struct_code).unpack_from, column.offset, column.null
    if null is None:
        return lambda self: unpack(self._data, self._at + offset)[0]

    def get(self: Message) -> int | None:
        (value,) = unpack(self._data, self._at + offset)
        return None if value == null else value

    return get


def _time_getter(column: Column, unit: str) -> Getter:
    unpack, offset, null = struct.Struct("<" + column.kind.struct_code).unpack_from, column.offset, column.null

    def get(self: Message) -> Any:  # does not call `_integer_getter`'s, because most messages have a time
        (value,) = unpack(self._data, self._at + offset)
        return None if value == null else as_time(value, unit)

    return get


def _decimal_getter(column: Column) -> Getter:
    unpack, offset, null = struct.Struct("<" + column.kind.struct_code).unpack_from, column.offset, column.null
    exponent = column.exponent

    @lru_cache(VALUES_MAX)
    def known(mantissa: int) -> Decimal | None:
        return None if mantissa == null else EXACT.scaleb(Decimal(mantissa), exponent)

    return lambda self: known(unpack(self._data, self._at + offset)[0])


def _text_getter(kind: SimpleType, offset: int, is_nullable: bool) -> Getter:
    code, text_of = value_maker(kind, is_nullable)
    unpack = struct.Struct(code).unpack_from
    known = lru_cache(VALUES_MAX)(text_of)
    return lambda self: known(unpack(self._data, self._at + offset)[0])


def _general_getter(field: Field, kind: ValueType) -> Getter:
    read, offset = value_reader(field.type, "<", field.presence is Presence.OPTIONAL), field.offset
    return lambda self: to_typed(kind, read(self._data, self._at + offset))


def _raw_getter(column: Column) -> Getter:
    is_text = column.kind.name == "char"
    code = f"{column.length}s" if is_text else f"<{column.length}{column.kind.struct_code}"
    unpack, offset = struct.Struct(code).unpack_from, column.offset
    if column.length == 1 or is_text:
        return lambda self: unpack(self._data, self._at + offset)[0]
    return lambda self: unpack(self._data, self._at + offset)
