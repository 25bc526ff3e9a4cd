"""A Protocol class defines the records of a journal: calling a method appends a record, reading one calls the method.

A record is a MessagePack array ``[method, {argument: value, ...}]``, after a history if the writer has a source of
histories (`journal.typed_records.history`). Omitted arguments are written with their defaults, so that a later change
of a default does not change old records. A method may gain arguments with defaults, and lose arguments: a reader fills
in missing arguments and ignores unknown ones. No record stops the reading. A handler that raises an exception does, and
the record is read again. Invariant: a reader of the same Protocol accepts all records of a writer::

    class Orders(Protocol):
        def place(self, symbol: str, quantity: int, price: float | None = None) -> None: ...

    method_writer(Orders, journal).place("ABC", quantity=100)
    MethodReader(tailer, Orders, handler).read_one()
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Generic, NoReturn, Protocol, TypeVar, runtime_checkable

import msgspec

from tandemfeed.journal.errors import JournalError
from tandemfeed.journal.typed_records.history import MessageHistory, split_history

T = TypeVar("T")
# What decoding untrusted bytes can raise; msgspec wraps the exceptions of argument types' constructors.
UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, JournalError)
_encode = msgspec.msgpack.Encoder().encode


class Appender(Protocol):
    """Appends records."""

    def append(self, record: bytes) -> int:
        """Append a record and return its index."""
        ...


class Reader(Protocol):
    """Reads records in order."""

    def read(self) -> tuple[int, bytes] | None:
        """The next record with its index, or None if there is none yet."""
        ...


@runtime_checkable
class Seekable(Protocol):
    """A reader that can go back."""

    def to_index(self, index: int) -> None:
        """Go to a record, to read it next."""
        ...


class BadProtocol(TypeError):
    """A Protocol with a method that cannot be recorded; the text says which and why."""


class NotAMethodRecord(JournalError):
    """Bytes that are not a record of a method writer."""


@dataclass(frozen=True, slots=True)
class UnknownMethod:
    """A record of a method that the reader's Protocol does not have."""

    index: int
    method: str
    record: bytes


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """A record that is not a method record, or whose arguments do not fit the reader's Protocol."""

    index: int
    reason: str
    record: bytes


@dataclass(frozen=True, slots=True)
class ReaderStatistics:
    """Counts of the records that a method reader has read."""

    handled_count: int
    unknown_count: int
    unreadable_count: int


class _Envelope(msgspec.Struct, array_like=True, frozen=True):
    method: str
    arguments: msgspec.Raw


_envelopes = msgspec.msgpack.Decoder(_Envelope)


@dataclass(frozen=True, slots=True)
class _Shape:
    """How calls of one method are encoded and decoded."""

    name: str  # with the Protocol's name, for messages
    names: tuple[str, ...]
    positional_count: int
    arguments_type: type[msgspec.Struct]
    decoder: msgspec.msgpack.Decoder[msgspec.Struct]

    def encode(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
        """The arguments of a call as MessagePack.

        Raises:
            TypeError: the arguments do not fit the method.
        """
        if len(args) > self.positional_count:
            raise TypeError(f"{self.name} takes {self.positional_count} positional arguments, not {len(args)}")
        try:
            encoded = _encode(self.arguments_type(**dict(zip(self.names, args, strict=False)), **kwargs))
            self.decoder.decode(encoded)  # the same check that a reader makes
        except (TypeError, *UNREADABLE) as error:
            raise TypeError(f"{self.name}: {error}; nothing was appended") from error
        return encoded


def method_writer(
    protocol: Callable[..., T], appender: Appender, *, history_source: Callable[[], MessageHistory] | None = None
) -> T:
    """An object with the Protocol's methods; calling one appends a record of the call.

    The methods return the record's index, an int; for a type checker they return None, as in the Protocol.

    Args:
        protocol: a Protocol class whose methods have annotated, named arguments and return None.
        appender: such as a Journal.
        history_source: returns the history of the next record, with this process's hop (`HopStamper.next_history`);
            called after the arguments are encoded, immediately before the append.

    Raises:
        BadProtocol: a method cannot be recorded. The methods raise TypeError if the arguments do not fit, or the
            appender's exception; in both cases nothing was appended.
    """
    shapes = _shapes_of(protocol)
    methods = {name: _appending(name, shape, appender, history_source) for name, shape in shapes.items()}
    written: T = type(f"{protocol.__name__}Writer", (), methods)()
    return written


def _appending(
    method: str, shape: _Shape, appender: Appender, history_source: Callable[[], MessageHistory] | None
) -> Callable[..., int]:
    def append(_writer: object, /, *args: object, **kwargs: object) -> int:
        record = _encode(_Envelope(method, msgspec.Raw(shape.encode(args, kwargs))))
        if history_source is not None:
            record = history_source().encode() + record
        return appender.append(record)

    append.__name__ = method
    return append


class MethodReader:
    """Calls a handler's methods with the records of a reader. Not thread-safe.

    Args:
        reader: such as a Tailer. If it has `to_index`, it is moved back to a record whose handler raised an exception,
            so that its position (and its stored position) is correct; otherwise the record is kept for the next call.
        protocol: as for `method_writer`; it may be older or newer than the writer's.
        handler: has the Protocol's methods.
        on_unknown: called with records that the handler cannot handle: of a method that the Protocol lacks, or
            unreadable. Such records are counted and skipped in any case.
        on_history: called with index and history (None if the record has none) before the handler
            (`HopStamper.on_read`).

    Raises:
        BadProtocol: a method cannot be a record.
        TypeError: the handler lacks a method.
    """

    def __init__(
        self,
        reader: Reader,
        protocol: Callable[..., object],
        handler: object,
        *,
        on_unknown: Callable[[UnknownMethod | UnreadableRecord], None] | None = None,
        on_history: Callable[[int, MessageHistory | None], None] | None = None,
    ) -> None:
        self._reader = reader
        self._methods: dict[str, tuple[_Shape, Callable[..., None]]] = {}
        for name, shape in _shapes_of(protocol).items():
            method = getattr(handler, name, None)
            if not callable(method):
                raise TypeError(f"{shape.name}: {type(handler).__name__} has no such method; add it to the handler")
            self._methods[name] = (shape, method)
        self._on_unknown = on_unknown
        self._on_history = on_history
        self._in_hand: tuple[int, bytes] | None = None
        self._handled_count = self._unknown_count = self._unreadable_count = 0

    def read_one(self) -> bool:
        """Read one record and call the handler's method, or `on_unknown`.

        Returns:
            False if there is no record to read.

        Raises:
            Exception: of the handler, `on_unknown` or `on_history`; the next call reads the same record again.
        """
        entry = self._in_hand or self._reader.read()
        if entry is None:
            return False
        self._in_hand = None
        try:
            self._dispatch(*entry)
        except BaseException:  # also if the handler was interrupted
            self._stay_at(entry)
            raise
        return True

    def statistics(self) -> ReaderStatistics:
        """Counts of the records read so far, without those whose handler raised an exception."""
        return ReaderStatistics(self._handled_count, self._unknown_count, self._unreadable_count)

    def _dispatch(self, index: int, record: bytes) -> None:
        try:
            history, method, raw = _opened(record)
            shape, handle = self._methods.get(method, (None, None))
            arguments = None if shape is None else _arguments_of(shape, raw)
        except UNREADABLE as error:
            self._skip(UnreadableRecord(index, str(error), record))
            self._unreadable_count += 1
            return
        if shape is None or handle is None:
            self._skip(UnknownMethod(index, method, record))
            self._unknown_count += 1
            return
        if self._on_history is not None:
            self._on_history(index, history)
        handle(**{name: getattr(arguments, name) for name in shape.names})
        self._handled_count += 1

    def _skip(self, outcome: UnknownMethod | UnreadableRecord) -> None:
        if self._on_unknown is not None:
            self._on_unknown(outcome)

    def _stay_at(self, entry: tuple[int, bytes]) -> None:
        if isinstance(self._reader, Seekable):
            self._reader.to_index(entry[0])
        else:
            self._in_hand = entry


def describe(record: bytes) -> dict[str, Any]:
    """A readable form of a record, without its Protocol: method, arguments and, if it has one, history.

    Raises:
        NotAMethodRecord: the record is not from a method writer.
    """
    try:
        history, method, raw = _opened(record)
        arguments = msgspec.msgpack.decode(raw, type=dict[str, Any])
    except UNREADABLE as error:
        raise NotAMethodRecord(f"not a method record: {error}") from error
    described: dict[str, Any] = {"method": method, "arguments": arguments}
    if history is not None:
        described["history"] = [asdict(hop) for hop in history.hops]
    return described


def _opened(record: bytes) -> tuple[MessageHistory | None, str, msgspec.Raw]:
    """History, method and encoded arguments; raises what UNREADABLE lists."""
    history, body = split_history(record)
    envelope = _envelopes.decode(body)
    return history, envelope.method, envelope.arguments


def _arguments_of(shape: _Shape, raw: msgspec.Raw) -> msgspec.Struct:
    try:
        return shape.decoder.decode(raw)
    except UNREADABLE as error:
        raise NotAMethodRecord(f"{shape.name}: {error}") from error


# --- from a Protocol to the shapes of its methods ---------------------------------------------------------------------


def _shapes_of(protocol: Any) -> dict[str, _Shape]:
    """The methods of a Protocol and of the Protocols it extends.

    Raises:
        BadProtocol: one of them cannot be recorded.
    """
    if not (isinstance(protocol, type) and getattr(protocol, "_is_protocol", False)):
        raise BadProtocol(f"{protocol!r} is not a Protocol class; derive it from typing.Protocol")
    shapes = {}
    for name, member in _members_of(protocol):
        full_name = f"{protocol.__name__}.{name}"
        if not inspect.isfunction(member):
            _refuse(full_name, "it is not a plain method; only calls can be recorded")
        if name.startswith("_"):
            _refuse(full_name, "a method whose name begins with an underscore is private; rename it")
        shapes[name] = _shape_of(full_name, member)
    if not shapes:
        raise BadProtocol(f"{protocol.__name__} has no methods")
    return shapes


def _members_of(protocol: type) -> Iterator[tuple[str, object]]:
    """The members declared in a Protocol and its bases, bases first, without those that Python adds."""
    for base in reversed(protocol.__mro__):
        if base in (object, Protocol, Generic):
            continue
        yield from ((name, None) for name in vars(base).get("__annotations__", {}))
        for name, member in vars(base).items():
            is_ours = not name.startswith("_") or (inspect.isfunction(member) and not name.startswith("__"))
            if is_ours and name not in vars(base).get("__annotations__", {}):
                yield name, member


def _shape_of(full_name: str, function: Callable[..., object]) -> _Shape:
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        _refuse(full_name, "it is not a plain method; a call returns as soon as its record is appended")
    _, *parameters = inspect.signature(function).parameters.values()
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        _refuse(full_name, f"its annotations cannot be resolved ({error}); declare the types in the module")
    if hints.get("return", object) is not type(None):
        _refuse(full_name, "annotate it with -> None; a record cannot return a value")
    for parameter in parameters:
        _check_parameter(full_name, parameter, hints)
    positional = [each.name for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    arguments_type = _arguments_type(full_name, parameters, hints)
    return _Shape(
        name=full_name,
        names=tuple(parameter.name for parameter in parameters),  # keyword-only ones come last
        positional_count=len(positional),
        arguments_type=arguments_type,
        decoder=msgspec.msgpack.Decoder(arguments_type),
    )


def _check_parameter(full_name: str, parameter: inspect.Parameter, hints: dict[str, Any]) -> None:
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        _refuse(full_name, f"{parameter} takes any number of arguments; declare each argument by name")
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        _refuse(full_name, f"{parameter.name} is positional only; arguments are recorded by name")
    if parameter.name not in hints:
        _refuse(full_name, f"{parameter.name} has no annotation")
    if parameter.default is inspect.Parameter.empty:
        return
    try:
        msgspec.msgpack.decode(_encode(parameter.default), type=hints[parameter.name])
    except (TypeError, *UNREADABLE) as error:
        _refuse(full_name, f"the default of {parameter.name} does not fit its annotation ({error})")


def _arguments_type(full_name: str, parameters: list[inspect.Parameter], hints: dict[str, Any]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for parameter in parameters:
        default = () if parameter.default is inspect.Parameter.empty else (parameter.default,)
        fields.append((parameter.name, hints[parameter.name], *default))
    try:
        arguments_type = msgspec.defstruct(full_name.partition(".")[2], fields, kw_only=True)
        foreign = _foreign_type(msgspec.inspect.type_info(arguments_type))
    except (TypeError, ValueError, RuntimeError) as error:
        _refuse(full_name, str(error))
    if foreign is not None:
        _refuse(
            full_name, f"{foreign!r} is not a type that MessagePack can encode; use a dataclass or a msgspec.Struct"
        )
    return arguments_type


def _foreign_type(root: msgspec.inspect.Type) -> object:
    """A class in these types that msgspec cannot encode, or None."""
    waiting: list[object] = [root]
    seen: set[int] = set()  # types can refer to themselves
    while waiting:
        node = waiting.pop()
        if isinstance(node, msgspec.inspect.CustomType):
            return node.cls
        if isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(node) not in seen:
            seen.add(id(node))
            waiting.extend(getattr(node, name) for name in node.__struct_fields__)
        elif isinstance(node, tuple):
            waiting.extend(node)
    return None


def _refuse(full_name: str, reason: str) -> NoReturn:
    raise BadProtocol(f"{full_name}: {reason}")
