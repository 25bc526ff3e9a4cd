"""SIGINT and SIGTERM as an exception, so that a command that is interrupted removes what it has written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Ended(BaseException):
    """A signal ended the command; no error, so nothing catches it by mistake. Attributes: status: to exit with."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.status = 128 + number  # as shells report it


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise `Ended` in the main thread at the first signal; further ones are ignored, while files are removed."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return

    def on_signal(number: int, _: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Ended(number)

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    for each in before:
        signal.signal(each, on_signal)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
