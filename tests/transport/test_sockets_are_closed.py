"""Every class with sockets closes them by name: when it is closed, and when it could not be made."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq

from tandemfeed.runtime.zeromq import Context
from tandemfeed.transport.calls.notices.adapter import DeathNoticeSender, GrantNoticeReceiver
from tandemfeed.transport.multicast.udp import UdpReceiver, UdpSender
from tandemfeed.transport.multicast.zeromq import ZeromqReceiver, ZeromqSender
from tandemfeed.transport.request_socket import RequestSocket
from tandemfeed.transport.unicast.admitted_clients import AdmittedClients
from tandemfeed.transport.unicast.listener import Listener
from tandemfeed.transport.unicast.publisher import UnicastPublisher
from tandemfeed.transport.unicast.receiver import UnicastReceiver
from tandemfeed.transport.unicast.wire import CurveKeys

INTERFACE, GROUP = "127.0.0.1", "239.192.55.1:16789"
KEYS = CurveKeys.generate()
MAKERS: dict[str, Callable[[Context], Any]] = {
    "ZeromqReceiver": lambda context: ZeromqReceiver(context, INTERFACE, GROUP),
    "ZeromqSender": lambda context: ZeromqSender(context, INTERFACE),
    "UdpReceiver": lambda _: UdpReceiver(INTERFACE, GROUP),
    "UdpSender": lambda _: UdpSender(INTERFACE),
    "RequestSocket": lambda context: RequestSocket(context, INTERFACE, "127.0.0.1:9"),
    "UnicastReceiver": lambda context: UnicastReceiver(context, "127.0.0.1:9", KEYS.public, KEYS, [1]),
    "UnicastPublisher": lambda _: UnicastPublisher("127.0.0.1:0", KEYS, [1], AdmittedClients()),
    "Listener": lambda _: Listener("127.0.0.1:0"),
    "DeathNoticeSender": lambda _: DeathNoticeSender("127.0.0.1:9"),
    "GrantNoticeReceiver": lambda _: GrantNoticeReceiver("127.0.0.1:0"),
}
STEPS = [
    *((zmq.Socket, name) for name in ("bind", "connect", "setsockopt", "set", "subscribe")),
    *((socket.socket, name) for name in ("bind", "connect", "setsockopt", "listen", "setblocking")),
]


class Interrupted(BaseException):
    """An interrupt, such as of Ctrl-C."""


class Fault:
    """Interrupts the n-th step; counts them."""

    def __init__(self, patch: pytest.MonkeyPatch, number: int) -> None:
        self._number, self.count = number, 0
        for owner, name in STEPS:
            patch.setattr(owner, name, self._counting(getattr(owner, name)))

    def _counting(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **more: Any) -> Any:
            self.count += 1
            if self.count == self._number:
                raise Interrupted
            return step(*arguments, **more)

        return counted


def descriptors() -> set[str]:
    """What this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:  # of the listing itself
            continue
    return found


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """Fails if a file or socket was opened and not closed, without the help of a finaliser."""
    gc.collect()
    gc.disable()
    kept: list[BaseException] = []  # an exception keeps what its frames refer to
    before = descriptors()
    try:
        try:
            yield
        except Interrupted as failed:
            kept.append(failed)
        assert descriptors() - before == set()
    finally:
        gc.enable()


@pytest.fixture(autouse=True)
def _warmed_up() -> None:
    """What libraries open once, and keep."""
    for make in MAKERS.values():
        with Context() as context:
            make(context).close()


@pytest.mark.parametrize("name", MAKERS)
def test_closing_closes_every_socket(name: str) -> None:
    with nothing_left_open(), Context() as context:
        made = MAKERS[name](context)
        made.close()
        assert all(each.closed for each in context._sockets)  # type: ignore[union-attr]


@pytest.mark.parametrize("name", MAKERS)
def test_an_interrupt_at_any_step_leaves_no_socket_open(name: str) -> None:
    number, is_complete = 0, False
    while not is_complete:
        number += 1
        with nothing_left_open(), Context() as context, pytest.MonkeyPatch.context() as patch:
            fault = Fault(patch, number)
            made = None
            try:
                made = MAKERS[name](context)
            finally:
                patch.undo()
                is_complete = fault.count < number
                assert is_complete or made is None
                if made is not None:
                    made.close()
                assert all(each.closed for each in context._sockets)  # type: ignore[union-attr]
    assert number > 1, "there was no step"
