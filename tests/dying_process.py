"""Runs a function in a process that then ends as if it was killed: it closes and flushes nothing."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")


def die_after(work: Callable[[], T]) -> T:
    """The result of a function that a forked process runs, which then ends without any cleaning up.

    Raises:
        AssertionError: the function raised; the text has its traceback.
    """
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiver)
        _run(work, sender)
    os.close(sender)
    with os.fdopen(receiver, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    assert data, f"the process ended with {os.waitstatus_to_exitcode(status)} before it had a result"
    has_succeeded, result = pickle.loads(data)
    assert has_succeeded, result
    return result  # type: ignore[no-any-return]


def _run(work: Callable[[], object], sender: int) -> NoReturn:
    try:
        try:
            outcome = (True, work())
        except BaseException:  # noqa: BLE001  # the test must see whatever it is
            outcome = (False, traceback.format_exc())
        data = memoryview(pickle.dumps(outcome))
        while data:
            data = data[os.write(sender, data) :]
    finally:
        os._exit(0)
