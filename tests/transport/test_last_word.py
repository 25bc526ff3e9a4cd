"""Last words are understood if they are said under the key of the start that they name, and not otherwise."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.transport.last_word import LOG, WORD, LastWords, LastWordSender

WAIT_S = 10.0
Heard = queue.SimpleQueue[int]


@pytest.fixture
def hearing() -> Iterator[tuple[LastWords, str, Heard]]:
    """A server that hears words at a free port."""
    words, heard = LastWords(), Heard()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    words.listen(endpoint, heard.put)
    yield words, endpoint, heard
    words.close()


def said(key: bytes, incarnation: int) -> bytes:
    """The datagram as it leaves."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        sender = LastWordSender(f"127.0.0.1:{receiver.getsockname()[1]}")
        sender.say(key, incarnation)
        sender.close()
        return receiver.recv(1_000)


def test_a_word_with_the_right_key_is_accepted(hearing: tuple[LastWords, str, Heard]) -> None:
    words, endpoint, heard = hearing
    sender = LastWordSender(endpoint)
    sender.say(words.key(8), 7)  # adapter 8's key
    sender.say(LastWords().key(7), 7)  # another server's
    sender.say(words.key(7), 7)
    assert heard.get(timeout=WAIT_S) == 7
    assert heard.empty()
    sender.close()


def test_datagrams_that_are_not_words_are_ignored(hearing: tuple[LastWords, str, Heard]) -> None:
    words, endpoint, heard = hearing
    host, _, port = endpoint.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anybody:
        for datagram in (b"", b"x", bytes(WORD.size), bytes(9_000)):
            anybody.sendto(datagram, (host, int(port)))
    sender = LastWordSender(endpoint)
    sender.say(words.key(1), 1)
    assert heard.get(timeout=WAIT_S) == 1
    sender.close()


def test_any_flipped_bit_invalidates_a_word() -> None:
    words = LastWords()
    datagram = said(words.key(3), 3)
    assert words.understand(datagram) == 3
    for bit in range(8 * len(datagram)):
        flipped = bytearray(datagram)
        flipped[bit // 8] ^= 1 << bit % 8
        assert words.understand(bytes(flipped)) is None


@given(st.binary(max_size=80))
def test_random_bytes_are_not_a_word(datagram: bytes) -> None:
    assert LastWords().understand(datagram) is None


def test_a_port_in_use_does_not_prevent_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(LOG, "warning", lambda event, **_: told.append(event))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        words = LastWords()
        words.listen(f"127.0.0.1:{taken.getsockname()[1]}", print)
        words.close()
    assert told == ["cannot receive last words; a killed adapter will be noticed later"]
