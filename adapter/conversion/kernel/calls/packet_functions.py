"""Calls users' functions once per packet, after the kernels gather their arguments and before the conversion.

If a function raises, or returns something invalid, it is called again with one value at a time. So it refuses only the
messages whose own values it cannot take, and every adapter refuses the same ones, however they are packed.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemfeed.adapter.conversion.kernel.calls.packet_calls import PacketCall, PacketCalls
from tandemfeed.adapter.conversion.table.functions import Calling, ConverterFunction
from tandemfeed.adapter.conversion.table.reasons import Reason
from tandemfeed.adapter.conversion.table.values import NULL
from tandemfeed.adapter.kernel_cache import compiled

MESSAGES_MAX = 1 << 16  # gathered at a time; a source packet has no more
ROOM_FIRST = 1 << 12  # slots, enough for a datagram of small messages; a larger packet is gathered in parts
BEYOND = NULL  # replaces an answer of more than 64 bits: outside every range
OUT_OF_RANGE = int(Reason.OUT_OF_RANGE)
Words = NDArray[np.int64]


@compiled()
def put_answers(answers, asked, at, values, low, high):  # type: ignore[no-untyped-def]
    """Write a function's answers to the slots where the conversion reads them.

    Args:
        at: where in `asked` the slots of these values begin.
        low, high: the function's range.
    """
    for row in range(values.size):
        slot = asked[at + row]
        answers[2 * slot] = values[row]
        answers[2 * slot + 1] = 0 if low <= values[row] <= high else OUT_OF_RANGE


class PacketFunctions:
    """The calls of one table.

    Attributes:
        failures: by function, why it failed most recently.
        answers: (value, reason) per slot, one after another.

    Args:
        gathers: the kernels of the stages.
        tables: the words that the kernels read.
    """

    def __init__(self, calls: PacketCalls, gathers: Sequence[Any], tables: Words) -> None:
        self.failures: dict[str, str] = {}
        self._gathers = gathers
        self._tables = tables
        self._columns = calls.columns
        self._by_stage = [[call for call in calls.calls if call.stage == stage] for stage in range(calls.stages)]
        self._slots = np.zeros(MESSAGES_MAX, np.int64)
        self._counts = np.zeros(len(calls.calls), np.int64)
        self._data: NDArray[np.uint8] | None = None
        self._first, self._end = 0, 0
        self._make_room(ROOM_FIRST)
        put_answers(self.answers, self._asked, 0, np.zeros(0, np.int64), 0, 0)  # compile it before the first packet

    def _make_room(self, room: int) -> None:
        self._room = room
        self._asked = np.zeros(self._columns * room, np.int64)
        self._arguments = self._asked.reshape(-1, room).view()
        self._arguments.setflags(write=False)  # functions cannot change their arguments
        self.answers = np.zeros(2 * room, np.int64)
        self._reasons = self.answers[1::2]

    def prepare(self, data: NDArray[np.uint8], skip: int, count: int) -> tuple[Words, int]:
        """Call the functions for the messages from `skip` on.

        Args:
            data: the packet; callers pass the same array object while it is the same packet.
            count: at least 1.

        Returns:
            The slots of the messages from `skip` on, and how many of these messages have their answers: 1 to `count`.
        """
        if data is not self._data or not self._first <= skip < self._end:
            self._data, self._first = data, skip
            self._end = skip + self._gather(data, skip, min(count, MESSAGES_MAX))
        return self._slots[skip - self._first :], min(count, self._end - skip)

    def _gather(self, data: NDArray[np.uint8], skip: int, count: int) -> int:
        ready, used = self._run(0, data, skip, count)
        while ready == 0:  # a message has more entries than there is room for
            self._make_room(1 << (used - 1).bit_length())
            ready, used = self._run(0, data, skip, count)
        self._reasons[:used] = Reason.FUNCTION_FAILED  # until there is an answer
        for stage, calls in enumerate(self._by_stage):
            if stage:
                self._run(stage, data, skip, ready)
            for call in calls:
                count = int(self._counts[call.number])
                if count:
                    self._answer(call, count)
        return ready

    def _run(self, stage: int, data: NDArray[np.uint8], skip: int, count: int) -> tuple[int, int]:
        for call in self._by_stage[stage]:
            self._counts[call.number] = 0
        found: tuple[int, int] = self._gathers[stage](
            data, skip, count, self._slots, self._counts, self._asked, self._room, self.answers, self._tables
        )
        return found

    def _answer(self, call: PacketCall, count: int) -> None:
        function = call.function
        given = self._arguments[call.column + 1 : call.column + 1 + len(function.values), :count]
        failed: list[int] = []
        if function.calling is Calling.PER_ARRAY:
            values = self._call_with_arrays(function, given, failed, 0)
        else:
            values = self._call_per_value(function, given, failed)
        slots = call.column * self._room
        put_answers(self.answers, self._asked, slots, values, function.low, function.high)
        for row in failed:
            self._reasons[self._asked[slots + row]] = Reason.FUNCTION_FAILED

    def _call_with_arrays(self, function: ConverterFunction, given: Words, failed: list[int], first: int) -> Words:
        """The answers of a function of arrays; adds to `failed` the rows, counted from `first`, that have no answer."""
        assert function.python is not None
        count = given.shape[1]
        try:
            return _integers(function.python(*given), count)
        except Exception as raised:  # noqa: BLE001  whatever a user function raises, the stream continues
            if count == 1:
                self._note(function, raised)
                failed.append(first)
                return np.zeros(1, np.int64)
        rows = [self._call_with_arrays(function, given[:, row : row + 1], failed, row) for row in range(count)]
        return np.concatenate(rows)

    def _call_per_value(self, function: ConverterFunction, given: Words, failed: list[int]) -> Words:
        """The answers of a function of integers, called once per value."""
        python, low, high = function.python, function.low, function.high
        assert python is not None
        answers: list[int] = []
        for values in zip(*given.tolist(), strict=True):
            try:
                answer = operator.index(python(*values))
            except Exception as raised:  # noqa: BLE001  as above
                self._note(function, raised)
                failed.append(len(answers))
                answer = 0
            answers.append(answer if low <= answer <= high else BEYOND)
        return np.array(answers, np.int64)

    def _note(self, function: ConverterFunction, raised: Exception) -> None:
        self.failures[function.name] = f"{type(raised).__name__}: {raised}"


def _integers(answers: Any, count: int) -> Words:
    """The result of a function of arrays as contiguous int64; raises TypeError if it is anything else."""
    if not isinstance(answers, np.ndarray) or answers.shape != (count,) or answers.dtype.kind not in "biu":
        what = f"{answers.dtype} of shape {answers.shape}" if isinstance(answers, np.ndarray) else repr(answers)[:80]
        raise TypeError(f"returned {what}, not integers of shape ({count},)")
    if answers.dtype == np.uint64:
        answers = np.minimum(answers, np.uint64(BEYOND))
    return np.array(answers, np.int64, order="C")
