"""Errors in settings files: one invalid document for each kind of error, and the lines of drawn documents."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct, field

from tandemfeed.transport.settings_file import InvalidSetting, SettingsError, SettingsFile, line_of


class Row(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[a-z]+\Z", description="a word of small letters")]
    limit_ms: Annotated[int, Meta(ge=50, le=60_000)] = 50
    share: Annotated[float, Meta(ge=0, le=1)] | None = None
    is_open: bool = False
    kinds: Annotated[frozenset[Literal["hot", "cold"]], Meta(min_length=1)] = frozenset({"hot"})
    ports: dict[int, str] = {}

    def __post_init__(self) -> None:
        if self.name == "forbidden":
            raise InvalidSetting("is not allowed", "name")


class Rows(Struct, frozen=True, forbid_unknown_fields=True):
    rows: Annotated[tuple[Row, ...], Meta(min_length=1)] = field(name="row")


# kind of error -> (the document, the error without the path of the file)
WRONG = {
    "a missing key": (
        "# rows\n[[row]]\nlimit_ms = 60\n",
        ", line 2: row[0].name is missing; it must be a word of small letters",
    ),
    "a missing table": (
        "",
        ": row is missing; it must be an array with at least one entry; each entry must be a table",
    ),
    "no entry": (
        "row = []",
        ", line 1: row is []; it must be an array with at least one entry; each entry must be a table",
    ),
    "an unknown key": (
        '[[row]]\nname = "a"\n[[row]]\nname = "b"\nlimit = 60',
        ", line 5: row[1].limit is not a known key; did you mean limit_ms?",
    ),
    "an unknown key like no other": (
        '[[row]]\nname = "a"\ncolour = 1',
        ", line 3: row[0].colour is not a known key; the known keys are name, limit_ms, share, is_open, kinds, ports",
    ),
    "an unknown table": ("[[row]]\nname = 'a'\n[rwo]", ", line 3: rwo is not a known key; did you mean row?"),
    "a wrong type": ("[[row]]\nname = 7", ", line 2: row[0].name is 7; it must be a word of small letters"),
    "a wrong form": ('[[row]]\nname = "A"', ', line 2: row[0].name is "A"; it must be a word of small letters'),
    "a value for a table": ("row = [3]", ", line 1: row[0] is 3; it must be a table"),
    "too small a number": (
        '[[row]]\nname = "a"\n\nlimit_ms = 20',
        ", line 4: row[0].limit_ms is 20; it must be an integer from 50 to 60000",
    ),
    "a boolean for a number": (
        '[[row]]\nname = "a"\nlimit_ms = true',
        ", line 3: row[0].limit_ms is true; it must be an integer from 50 to 60000",
    ),
    "too large a ratio": (
        '[[row]]\nname = "a"\nshare = 30',
        ", line 3: row[0].share is 30; it must be a number from 0 to 1",
    ),
    "a number for a boolean": (
        '[[row]]\nname = "a"\nis_open = 1',
        ", line 3: row[0].is_open is 1; it must be true or false",
    ),
    "an unknown word": (
        '[[row]]\nname = "a"\nkinds = [\n "hot",\n "warm",\n]',
        ', line 3: row[0].kinds[1] is "warm"; it must be one of "cold", "hot"',
    ),
    "an invalid key of a table": (
        '[[row]]\nname = "a"\nports = { x = "y" }',
        ', line 3: row[0].ports is {"x":"y"}; it must be a table',
    ),
    "what the model checks itself": ('row = [\n{ name = "forbidden" },\n]', ", line 1: row[0].name is not allowed"),
    "a long value": (
        f'[[row]]\nname = "{"A" * 200}"',
        f', line 2: row[0].name is "{"A" * 79}…; it must be a word of small letters',
    ),
    "an error of syntax": ("[[row]]\nname = a", ", line 2, column 8: not valid TOML: Invalid value"),
    "an unfinished document": ('[[row]]\nname = "a', ", line 2: not valid TOML: Unterminated string"),
    "a key defined twice": (
        '[[row]]\nname = "a"\nname = "b"\n',
        ", line 3, column 11: not valid TOML: Cannot overwrite a value",
    ),
    "lines that end as in Windows": (
        "[[row]]\r\nname = 7\r\n",
        ", line 2: row[0].name is 7; it must be a word of small letters",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_error_gives_the_file_the_line_the_key_and_what_is_allowed(kind: str, tmp_path: Path) -> None:
    document, expected = WRONG[kind]
    path = tmp_path / "rows.toml"
    path.write_bytes(document.encode())
    with pytest.raises(SettingsError) as refused:
        SettingsFile(path).convert(Rows)
    assert str(refused.value) == f"{path}{expected}"


def test_a_file_that_cannot_be_read_or_decoded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.toml cannot be read: no such file"):
        SettingsFile(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'[[row]]\nname = "\xe9"\n')
    with pytest.raises(SettingsError, match=r"latin\.toml, line 2: the file must be encoded in UTF-8"):
        SettingsFile(tmp_path / "latin.toml")


def test_a_valid_file_is_converted(tmp_path: Path) -> None:
    path = tmp_path / "rows.toml"
    path.write_text('[[row]]\nname = "a"\nshare = 1\nkinds = ["cold"]\nports = { 1 = "y" }\n')
    assert SettingsFile(path).convert(Rows).rows == (
        Row(name="a", share=1.0, kinds=frozenset({"cold"}), ports={1: "y"}),
    )


VALUES = (
    "7",
    '"text # ["',
    '"""\n[t0]\nk0 = 1\n"""',
    "[\n  1, # one\n  2,\n]",
    "{ x = 1 }",
    "[[1], [2]]",
    "'''\n\n'''",
)
FILLERS = st.lists(st.sampled_from(("", "# k0 = 1", "   ", "# [t0]", '# """')), max_size=3)


@given(tables=st.lists(st.lists(st.tuples(st.sampled_from(VALUES), FILLERS), max_size=4), max_size=4))
def test_the_line_of_every_key_is_the_one_on_which_its_statement_begins(
    tables: list[list[tuple[str, list[str]]]],
) -> None:
    lines: list[str] = []
    expected: dict[tuple[str | int, ...], int] = {}
    for place, rows in enumerate(tables):
        lines.append(f"[[table]] # {place}")
        expected["table", place] = len(lines)
        for number, (value, fillers) in enumerate(rows):
            lines += fillers
            expected["table", place, f"k{number}"] = len(lines) + 1
            lines += f"k{number} = {value}".split("\n")
    text = "\n".join(lines)
    tomllib.loads(text)
    assert {keys: line_of(text, keys) for keys in expected} == expected
