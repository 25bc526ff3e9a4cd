"""Settings files: TOML documents described by msgspec models. Every error gives file, line, key, and what is allowed.

An error reads `cluster.toml, line 12: feed[0].lease_ttl_ms is 20; it must be an integer from 50 to 60000`. What is
allowed comes from the model: from the types, from the bounds in `msgspec.Meta`, and from `Meta.description`, which
completes the sentence "it must be …". What a model cannot express, it checks in `__post_init__` (InvalidSetting).
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

Model = TypeVar("Model")
Key = str | int  # of a table, or the place in an array

SHOWN_MAX = 80  # characters of an invalid value that an error shows
_PLACE = re.compile(r" - at (?:`key` in )?`\$([^`]*)`$")
_HEADER = re.compile(r"[ \t]*\[{1,2}[ \t]*([\w.-]+)[ \t]*\]{1,2}[ \t]*(?:#.*)?$")
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*?)`(?: - at .*)?", re.DOTALL)
_SYNTAX = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


class SettingsError(ValueError):
    """A setting cannot be used; the text says where it is, what is wrong and what to do."""


class InvalidSetting(ValueError):
    """What a model's `__post_init__` or a `dec_hook` raises to refuse a value.

    Args:
        reason: the sentence that follows the key.
        keys: the key path in the model's table; none if the reason is about the whole value.
    """

    def __init__(self, reason: str, *keys: Key) -> None:
        super().__init__(reason)
        self.reason, self.keys = reason, keys


class SettingsFile:
    """A TOML file that has been read.

    Args:
        content: its content, if it was read already.

    Raises:
        SettingsError: the file cannot be read, or is not TOML.
    """

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        self._path = path
        try:
            self._text = (path.read_bytes() if content is None else content).decode().replace("\r\n", "\n")
            self.values = tomllib.loads(self._text)
        except OSError as bad:
            raise SettingsError(f"{path} cannot be read: {(bad.strerror or str(bad)).lower()}") from bad
        except UnicodeDecodeError as bad:
            line = bad.object.count(b"\n", 0, bad.start) + 1
            raise SettingsError(f"{path}, line {line}: the file must be encoded in UTF-8: {bad.reason}") from bad
        except tomllib.TOMLDecodeError as bad:
            raise self._syntax_error(str(bad)) from bad

    @cached_property
    def _headers(self) -> dict[str, list[int]]:
        """The lines of each header with plain keys."""
        found: dict[str, list[int]] = {}
        for number, line in enumerate(self._text.split("\n"), 1):
            if (header := _HEADER.match(line)) is not None:
                found.setdefault(header[1], []).append(number)
        return found

    def convert(self, model: type[Model], *keys: Key, dec_hook: Callable[[type, Any], Any] | None = None) -> Model:
        """The values at a key path (none: the whole file) as an instance of a model.

        Args:
            dec_hook: as in `msgspec.convert`.

        Raises:
            SettingsError: the values do not fit the model.
        """
        try:
            return msgspec.convert(_value_at(self.values, keys), model, str_keys=True, dec_hook=dec_hook)
        except msgspec.ValidationError as bad:
            place = _PLACE.search(str(bad))
            inner = [name or int(number) for name, number in _STEP.findall(place[1] if place else "")]
            raise self._explained(bad, model, keys, inner) from bad

    def table_line(self, *keys: Key) -> int:
        """The line of a table: of its header [a.b], or [[a]] for a table of an array, if it has one."""
        place = keys[-1]
        names, count = (keys[:-1], len(_value_at(self.values, keys[:-1]))) if isinstance(place, int) else (keys, 1)
        found = self._headers.get(".".join(map(str, names)), [])
        if len(found) != count:
            return line_of(self._text, keys)
        return found[place] if isinstance(place, int) else found[0]

    def error(self, keys: Iterable[Key], reason: str) -> SettingsError:
        """An error about the value at a key path; if it is absent, the line is that of the table that lacks it."""
        keys = tuple(keys)
        name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
        while keys and not _contains(self.values, keys):
            keys = keys[:-1]
        line = f", line {line_of(self._text, keys)}" if keys else ""
        return SettingsError(f"{self._path}{line}: {name} {reason}")

    def _explained(
        self, bad: msgspec.ValidationError, model: type, outer: tuple[Key, ...], inner: list[Key]
    ) -> SettingsError:
        """The error for what msgspec found at the key path `inner` of the value at `outer`."""
        if isinstance(cause := bad.__cause__, InvalidSetting):
            return self.error((*outer, *inner, *cause.keys), cause.reason)
        root = inspect.type_info(model)
        if (field := _FIELD.fullmatch(str(bad))) is None:
            found = shown(_value_at(self.values, (*outer, *inner)))
            return self.error((*outer, *inner), f"is {found}; it must be {_allowed(_type_at(root, inner))}")
        keys = (*outer, *inner, field[2])
        if field[1] == "missing required":
            return self.error(keys, f"is missing; it must be {_allowed(_type_at(root, [*inner, field[2]]))}")
        known = [each.encode_name for each in _fields(_type_at(root, inner))]
        near = get_close_matches(field[2], known, 1)
        advice = f"did you mean {near[0]}?" if near else f"the known keys are {', '.join(known)}"
        return self.error(keys, f"is not a known key; {advice}")

    def _syntax_error(self, text: str) -> SettingsError:
        found = _SYNTAX.fullmatch(text)
        reason, line, column = found.groups() if found else (text, None, None)
        place = f"line {line}, column {column}" if line else f"line {self._text.count(chr(10)) + 1}"
        return SettingsError(f"{self._path}, {place}: not valid TOML: {reason}")


def line_of(text: str, keys: Iterable[Key]) -> int:
    """The line, from 1, on which the statement begins that defines a key path. The document must contain the path.

    tomllib gives no positions, so this parses beginnings of the document: those that end inside a statement are not
    TOML, and of the others, those that end after the statement contain the path.
    """
    lines, keys = text.split("\n"), tuple(keys)

    def defines(count: int) -> bool:
        """Whether the shortest beginning that is TOML and has at least `count` lines contains the path."""
        for end in range(count, len(lines)):
            with suppress(tomllib.TOMLDecodeError):
                return _contains(tomllib.loads("\n".join(lines[:end])), keys)
        return True  # the whole document

    return bisect_left(range(len(lines)), True, key=defines)


def shown(value: object) -> str:
    """A value as an error shows it, in one short line that resembles TOML."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def _value_at(values: Any, keys: Iterable[Key]) -> Any:
    for key in keys:
        values = values[key]
    return values


def _contains(values: Any, keys: Iterable[Key]) -> bool:
    try:
        _value_at(values, keys)
    except (LookupError, TypeError):
        return False
    return True


def _type_at(node: inspect.Type, keys: Iterable[Key]) -> inspect.Type:
    for key in keys:
        match _bare(node):
            case inspect.StructType() as struct:
                node = next(each.type for each in struct.fields if each.encode_name == key)
            case inspect.CollectionType() as array:
                node = array.item_type
    return node


def _bare(node: inspect.Type) -> inspect.Type:
    """A type without its metadata, and without None, which TOML does not have."""
    match node:
        case inspect.Metadata():
            return _bare(node.type)
        case inspect.UnionType():
            return _bare(next(each for each in node.types if not isinstance(each, inspect.NoneType)))
    return node


def _fields(node: inspect.Type) -> tuple[inspect.Field, ...]:
    bare = _bare(node)
    return bare.fields if isinstance(bare, inspect.StructType) else ()


def _allowed(node: inspect.Type) -> str:
    """What a value of this type must be, as the end of a sentence."""
    if isinstance(node, inspect.UnionType):
        node = next(each for each in node.types if not isinstance(each, inspect.NoneType))  # TOML has no None
    if isinstance(node, inspect.Metadata) and "description" in (node.extra_json_schema or {}):
        return str((node.extra_json_schema or {})["description"])
    match _bare(node):
        case inspect.LiteralType(values):
            return f"one of {', '.join(map(shown, values))}"
        case inspect.IntType(ge=low, le=high):
            return "an integer" if low is None or high is None else f"an integer from {low} to {high}"
        case inspect.FloatType(ge=low, le=high):
            return "a number" if low is None or high is None else f"a number from {low:g} to {high:g}"
        case inspect.CollectionType(item_type=item, min_length=least):
            return f"an array{' with at least one entry' if least else ''}; each entry must be {_allowed(item)}"
        case inspect.StructType() | inspect.DictType():
            return "a table"
        case inspect.BoolType():
            return "true or false"
    return "a string"
