"""Users' functions that numba cannot compile: called in Python once per packet, with the interpreter's results."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tandemfeed.adapter.conversion import CompiledConverter, converter_function
from tandemfeed.adapter.conversion.kernel.calls import packet_functions
from tandemfeed.adapter.conversion.kernel.kernel_source import kernel_source
from tandemfeed.adapter.conversion.table import user_functions
from tandemfeed.adapter.conversion.table.user_functions import register
from tandemfeed.adapter.convert_command.explaining import explain
from tandemfeed.feedcore.documents.xml_document import DocumentError
from tests.conversion.oracle.interpreted import InterpretedConverter
from tests.conversion.packet_material import OUT, SMALL, Both, legs, load, packet, pair


@converter_function(minimum=-1_000_000, maximum=1_000_000)
def halved(of: int) -> int:
    """Half of the value, rounded half to even."""
    if of == 666:
        raise ValueError("the number of the beast")
    return int((Decimal(of) / 2).to_integral_value())


@converter_function(minimum=0, maximum=50_000, per_packet=True)
def distance(of: NDArray[np.int64], to: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distance between two values."""
    if (of == 13).any():
        raise ArithmeticError("thirteen")
    if (of == 14).any():
        return np.append(of, to)
    return np.abs(of - to)


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registered function is known only to the test that registers it."""
    monkeypatch.setattr(user_functions, "_registered", dict(user_functions._registered))
    register("halved", halved)
    register("distance", distance)


def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of values in each call of `distance` from now on."""
    sizes: list[int] = []
    inner: Callable[..., Any] = distance.python

    def counted(of: NDArray[np.int64], to: NDArray[np.int64]) -> Any:
        sizes.append(of.size)
        return inner(of, to)

    register("counted", converter_function(minimum=0, maximum=50_000, per_packet=True)(counted))
    return sizes


def test_a_function_that_numba_cannot_compile_is_called_in_python_with_the_same_results(tmp_path: Path) -> None:
    both = Both(load(tmp_path, SMALL))
    frames = [pair(7), pair(-9), (3, b"\0\0\0\0"), pair(8), pair(666), pair(2_000_002), (9, b""), pair(5)]
    assert both.convert(frames) == [(0, 4, -1), (1, -1, -1), (3, 4, -1), (7, 2, -1)]
    assert both.counts() == {"function_failed": 1, "out_of_range": 1, "not_converted": 1, "unknown_type": 1}
    letters = {letter.source_seq: letter.reason.name for letter in both.compiled.take_dead_letters()}
    assert letters == {5: "FUNCTION_FAILED", 6: "OUT_OF_RANGE", 7: "UNKNOWN_TYPE"}
    assert both.compiled.function_failures() == {"halved": "ValueError: the number of the beast"}


def test_a_function_of_arrays_is_called_once_for_all_messages_that_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = asked(monkeypatch)
    converts = """<convert message="m" to="out"><when of="b" above="0"/>
    <field name="first" function="counted" of="a" to="b"/>
    <field name="second" function="counted" of="b" to="b"/></convert>
    <convert message="legs" to="out" each="g"><field name="first" function="counted" of="x" to="b"/></convert>"""
    compiled = CompiledConverter(load(tmp_path, converts))
    frames = [pair(7, 9), pair(1, 0), legs(5, 1, -9, 3), pair(-9, 2), legs(6), legs(1, 100_000)]
    data, out = packet(frames), np.zeros(1_000, np.uint8)
    result = compiled.convert(data, 0, len(frames), out, 0, 1_000)
    assert np.frombuffer(out[: result.end], OUT)["first"].tolist() == [2, 4, -1, 2, -1]
    assert sizes == [6], "two of the first and one of the fourth message, three entries that are not null"
    assert compiled.counts()["out_of_range"] == 1
    assert compiled.convert(data, 3, 3, out, 0, 1_000).source_count == 3
    assert sizes == [6], "nor is it called again for the rest of a packet whose output was sent in parts"
    compiled.convert(packet(frames), 0, 3, out, 0, 1_000)
    assert sizes == [6, 4], "another packet: the two messages before, two entries"


def test_groups_guards_and_answers_as_arguments_agree_with_the_interpreter(tmp_path: Path) -> None:
    converts = """<convert message="m" to="out">
      <let name="half" function="halved" of="a"/><let name="far" function="distance" of="half" to="b"/>
      <let name="farther" function="increase" of="far" amount="3"/><let name="quarter" function="halved" of="half"/>
      <when of="far" above="2"/><when of="b" isNot="8"/>
      <field name="first" function="halved" of="farther"/><field name="second" function="copy" of="quarter"/></convert>
    <convert message="legs" to="out" each="g"><when of="x" isNot="5"/>
      <let name="half" function="halved" of="x"/><field name="first" function="distance" of="half" to="x"/>
      <field name="second" function="halved" of="half"/></convert>
    <convert message="legs" to="out"><field name="first" function="halved" of="b"/></convert>"""
    table = load(tmp_path, converts)
    assert kernel_source(table).text.count("\ndef gather_") == 3
    both = Both(table)
    values = [0, 1, 5, -9, 13, 14, 26, 28, 666, 1_332, 2_664, 100_000, 3_000_000]
    frames = [pair(a, b) for a in values for b in (0, 3, 8, 60_000)]
    frames += [
        legs(b, *entries) for b in (0, 666) for entries in ([], [5, 666], [26], [1, 2, -9, 7], [5, 5], values[:4])
    ]
    for room in (1_000_000, 300, 150):
        found = both.convert(frames, room)
        assert len(found) > 20
    assert both.counts().keys() == {"function_failed", "out_of_range"}


def test_messages_that_a_guard_skips_do_not_call_the_function(tmp_path: Path) -> None:
    guarded = SMALL.replace("<field", '<when of="a" isNot="666"/><field')
    both = Both(load(tmp_path, guarded))
    assert both.convert([pair(666), pair(4)]) == [(1, 2, -1)]
    assert both.counts() == {}
    assert both.compiled.function_failures() == {}


@pytest.mark.parametrize("bad", [13, 14])
def test_a_value_that_a_function_of_arrays_cannot_take_refuses_only_its_message(tmp_path: Path, bad: int) -> None:
    convert = '<convert message="m" to="out"><field name="first" function="distance" of="a" to="b"/></convert>'
    both = Both(load(tmp_path, convert))
    assert both.convert([pair(1, 3), pair(bad, 3), pair(-9, 3), pair(5, 3)]) == [(0, 2, -1), (2, -1, -1), (3, 2, -1)]
    assert both.counts() == {"function_failed": 1}
    assert both.convert([pair(8, 3)]) == [(0, 5, -1)], "the stream continues"


def test_the_same_messages_are_refused_however_a_packet_is_split(tmp_path: Path) -> None:
    convert = '<convert message="m" to="out"><field name="first" function="distance" of="a" to="b"/></convert>'
    table = load(tmp_path, convert)
    frames = [pair(a, 3) for a in (1, 13, 5, 14, 2, 70_000)]
    whole, single = CompiledConverter(table), CompiledConverter(table)
    out = np.zeros(1_000, np.uint8)
    whole.convert(packet(frames), 0, len(frames), out, 0, 1_000)
    for frame in frames:
        single.convert(packet([frame]), 0, 1, out, 0, 1_000)
    assert whole.counts() == single.counts()


BAD_ANSWERS: list[Callable[[NDArray[np.int64]], object]] = [
    lambda of: of.astype(np.float64),
    lambda of: of[:0],
    lambda of: of.reshape(1, -1),
    lambda of: of.tolist(),
    lambda of: None,
    lambda of: of.astype(object),
    lambda of: of.__setitem__(0, 1),
]


@pytest.mark.parametrize("answer", BAD_ANSWERS)
def test_a_result_that_is_not_an_array_of_integers_refuses_every_message_of_the_call(
    tmp_path: Path, answer: Callable[[NDArray[np.int64]], object]
) -> None:
    register("wrong", converter_function(per_packet=True)(answer))
    both = Both(load(tmp_path, SMALL.replace("halved", "wrong")))
    assert both.convert([pair(1), pair(-9), pair(3)]) == [(1, -1, -1)]
    assert both.counts() == {"function_failed": 2}


@pytest.mark.parametrize("kind", [np.int8, np.uint64, np.bool_])
def test_integers_of_any_width_are_accepted_within_the_range(tmp_path: Path, kind: type) -> None:
    def cast(of: NDArray[np.int64]) -> NDArray[Any]:
        return of.astype(kind)

    register("cast_to", converter_function(minimum=0, maximum=100, per_packet=True)(cast))
    both = Both(load(tmp_path, SMALL.replace("halved", "cast_to")))
    both.convert([pair(value) for value in (0, 1, 100, 101, 127, 128, -1, -9, 256, 2**31 - 1)])


@pytest.mark.parametrize("answer", [lambda of: None if of == 3 else of, lambda of: of / Decimal(2), lambda of: "1"])
def test_a_function_that_does_not_return_an_integer_refuses_its_message(
    tmp_path: Path, answer: Callable[[int], Any]
) -> None:
    def odd(of: int) -> Any:
        return answer(of)

    register("odd", converter_function()(odd))
    both = Both(load(tmp_path, SMALL.replace("halved", "odd")))
    both.convert([pair(3), pair(3), pair(-9)])
    assert both.counts() == {"function_failed": 2}


def test_a_packet_with_too_many_arguments_is_converted_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packet_functions, "ROOM_FIRST", 8)
    sizes = asked(monkeypatch)
    converts = """<convert message="legs" to="out" each="g">
    <field name="first" function="counted" of="x" to="b"/></convert>
    <convert message="m" to="out"><field name="first" function="counted" of="a" to="b"/></convert>"""
    both = Both(load(tmp_path, converts))
    frames = [pair(1), legs(2, *range(20, 26)), legs(3), legs(4, *range(20, 60)), pair(5), legs(6, *range(20, 27))]
    frames += [pair(7, number) for number in range(100)]
    sizes.clear()
    assert len(both.convert(frames)) == 155
    assert max(sizes) == 64, "room was made for a message of forty entries, and is kept"
    for room in (1_200, 1_500):
        both.convert(frames, room)


def test_a_damaged_packet_is_refused_as_far_as_it_is_damaged(tmp_path: Path) -> None:
    converts = """<convert message="legs" to="out" each="g"><field name="first" function="halved" of="x"/></convert>
    <convert message="m" to="out"><field name="first" function="distance" of="a" to="b"/></convert>"""
    table = load(tmp_path, converts)
    data = packet([pair(1), legs(3, 4, 5), legs(2, 7), pair(9), (2, b"\1\0\4\xff\xff"), (1, b"\0"), pair(3, 1)])
    for size in (10, 32, 33, 41, 50, 60, len(data) - 1, len(data)):
        compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
        ours, theirs = np.zeros(500, np.uint8), np.zeros(500, np.uint8)
        assert compiled.convert(data[:size], 0, 7, ours, 0, 500) == oracle.convert(data[:size], 0, 7, theirs, 0, 500)
        assert bytes(ours) == bytes(theirs)
        assert compiled.counts() == oracle.counts()


def test_a_table_of_many_conversions_is_split_into_functions_that_find_their_answers(tmp_path: Path) -> None:
    converts = '<convert message="other" to="out"><field name="first" function="copy" of="a"/></convert>\n' + SMALL * 4
    converts += (
        '<convert message="legs" to="out" each="g"><field name="second" function="halved" of="x"/></convert>' * 3
    )
    table = load(tmp_path, converts)
    assert "def message_1(" in kernel_source(table).text
    frames = [pair(4), (3, b"\1\0\0\0"), legs(1, 8, 10, 666), pair(666), legs(1, 2, 6), pair(10)]
    assert len(Both(table).convert(frames)) == 4 + 1 + 6 + 4


KEYED = """<convert message="m" to="out">
<let name="sum" function="sum" of="b" by="a"/>
<let name="more" function="increase" of="b" amount="1"/>
<field name="first" function="{}" of="{}"/></convert>"""


@pytest.mark.parametrize("name", ["halved", "spread"])
def test_an_argument_that_depends_on_state_is_refused_with_file_line_and_reason(tmp_path: Path, name: str) -> None:
    register("spread", converter_function(per_packet=True)(lambda of: of))
    with pytest.raises(DocumentError, match=rf"t\.xml:5: {name} is called in Python .*, but of depends on state"):
        load(tmp_path, KEYED.format(name, "sum"))
    load(tmp_path, KEYED.format(name, "more"))


def test_entries_of_a_group_in_a_group_cannot_call_such_a_function(tmp_path: Path) -> None:
    with pytest.raises(
        DocumentError, match=r"t\.xml:2: halved is called in Python .*; it cannot be used per entry of a group in a"
    ):
        load(tmp_path, SMALL.replace('message="m"', 'message="nested" each="outer.inner"'))
    both = Both(load(tmp_path, SMALL.replace('message="m"', 'message="nested" each="outer"')))
    body = b"\3" + b"".join(struct.pack("<iBhh", a, 2, 5, 6) for a in (8, 666, 10))
    assert both.convert([(4, body), pair(1), (4, b"\2" + struct.pack("<iBiB", 12, 0, 6, 0)), (4, body[:-1])]) == [
        (2, 6, -1),
        (2, 3, -1),
    ]
    assert both.counts() == {"function_failed": 1, "not_converted": 1, "wrong_length": 1}


GROUP = """<convert message="legs" to="book"><let name="half" function="halved" of="b"/>
<group name="legs" of="g"><field name="first" function="{}" of="{}"/></group></convert>"""


def test_such_a_function_in_an_output_group_is_refused_with_file_line_and_reason(tmp_path: Path) -> None:
    reason = r"t\.xml:3: halved is called in Python before a packet is converted .*; use it in a <let> of the <convert>"
    with pytest.raises(DocumentError, match=reason):
        load(tmp_path, GROUP.format("halved", "x"))


def test_an_output_group_can_write_an_answer_of_its_convert(tmp_path: Path) -> None:
    register("doubled", converter_function()(lambda of: 2 * of))
    table = load(tmp_path, GROUP.format("doubled", "half"))
    compiled, oracle = CompiledConverter(table), InterpretedConverter(table)
    data = packet([legs(8, 1, 2), legs(666, 1), legs(10)])
    ours, theirs = np.zeros(500, np.uint8), np.zeros(500, np.uint8)
    result = compiled.convert(data, 0, 3, ours, 0, 500)
    assert result == oracle.convert(data, 0, 3, theirs, 0, 500)
    assert result.message_count == 2
    assert bytes(ours) == bytes(theirs)
    assert ours.tobytes()[16:32] == struct.pack("<qq", 8, 8)
    assert compiled.counts()["function_failed"] == 1


def test_every_argument_must_be_a_number(tmp_path: Path) -> None:
    convert = """<convert message="m" to="out">
    <field name="first" function="distance" of="a" to="tag"/></convert>"""
    with pytest.raises(DocumentError, match=r"t\.xml:3: to='tag' is text of 3; distance needs a number"):
        load(tmp_path, convert.replace('of="a"', 'of="b"'))
    with pytest.raises(DocumentError, match=r"t\.xml:3: to='tag' is text of 3; distance needs a number"):
        load(tmp_path, convert)


def test_an_answer_may_be_part_of_a_key(tmp_path: Path) -> None:
    convert = """<convert message="m" to="out"><let name="half" function="halved" of="a"/>
    <field name="first" function="sum" of="b" by="half"/><field name="second" function="copy" of="half"/></convert>"""
    both = Both(load(tmp_path, convert))
    assert both.convert([pair(4, 1), pair(8, 5), pair(666, 9), pair(4, 2)]) == [(0, 1, 2), (1, 5, 4), (3, 3, 2)]


def test_source_range_and_version_of_a_function_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    prints = [load(tmp_path, SMALL).fingerprint]
    register("halved", converter_function(minimum=-1_000_000, maximum=999)(halved.python))
    prints.append(load(tmp_path, SMALL).fingerprint)

    def other(of: int) -> int:
        return int(Decimal(of) / 2)

    register("halved", converter_function(minimum=-1_000_000, maximum=1_000_000)(other))
    prints.append(load(tmp_path, SMALL).fingerprint)

    register("halved", converter_function(minimum=-1_000_000, maximum=1_000_000, version="2")(other))
    prints.append(load(tmp_path, SMALL).fingerprint)
    assert len(set(prints)) == 4


def test_a_kernel_without_such_functions_contains_no_code_for_them(tmp_path: Path) -> None:
    plain = '<convert message="m" to="out"><field name="first" function="copy" of="a"/></convert>'
    text = kernel_source(load(tmp_path, plain)).text
    assert not re.search(r"answer[a-z]|slot|ready|done|gather|FUNCTION_FAILED", text)


def test_explain_says_how_each_function_runs(tmp_path: Path) -> None:
    register("twice", converter_function()(lambda of: 2 * of))
    convert = """<convert message="m" to="out"><let name="half" function="halved" of="a"/>
    <let name="double" function="twice" of="half"/>
    <field name="first" function="distance" of="half" to="double"/></convert>"""
    text = "\n".join(explain(load(tmp_path, convert)))
    assert "function distance: called in Python once per packet, with arrays, in stage 2 of 2" in text
    assert "function halved: called in Python once per packet, value by value, in stage 1 of 2: numba cannot" in text
    assert "function twice: compiled into the kernel" in text
