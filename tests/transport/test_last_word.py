"""A last word is accepted only if it was made with the key of the start that it names."""

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
def listening() -> Iterator[tuple[LastWords, str, Heard]]:
    """A server that receives last words on a free port."""
    words, heard = LastWords(), Heard()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    words.listen(endpoint, heard.put)
    yield words, endpoint, heard
    words.close()


def sent_datagram(key: bytes, incarnation: int) -> bytes:
    """The datagram that a sender sends."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        sender = LastWordSender(f"127.0.0.1:{receiver.getsockname()[1]}")
        sender.say(key, incarnation)
        sender.close()
        return receiver.recv(1_000)


def test_a_last_word_with_the_right_key_is_accepted(listening: tuple[LastWords, str, Heard]) -> None:
    words, endpoint, heard = listening
    sender = LastWordSender(endpoint)
    sender.say(words.key(8), 7)  # adapter 8's key
    sender.say(LastWords().key(7), 7)  # another server's
    sender.say(words.key(7), 7)
    assert heard.get(timeout=WAIT_S) == 7
    assert heard.empty()
    sender.close()


def test_datagrams_that_are_not_last_words_are_ignored(listening: tuple[LastWords, str, Heard]) -> None:
    words, endpoint, heard = listening
    host, _, port = endpoint.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for datagram in (b"", b"x", bytes(WORD.size), bytes(9_000)):
            stranger.sendto(datagram, (host, int(port)))
    sender = LastWordSender(endpoint)
    sender.say(words.key(1), 1)
    assert heard.get(timeout=WAIT_S) == 1
    sender.close()


def test_any_flipped_bit_invalidates_a_last_word() -> None:
    words = LastWords()
    datagram = sent_datagram(words.key(3), 3)
    assert words.understand(datagram) == 3
    for bit in range(8 * len(datagram)):
        flipped = bytearray(datagram)
        flipped[bit // 8] ^= 1 << bit % 8
        assert words.understand(bytes(flipped)) is None


@given(st.binary(max_size=80))
def test_random_bytes_are_not_a_last_word(datagram: bytes) -> None:
    assert LastWords().understand(datagram) is None


def test_a_port_in_use_does_not_prevent_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(LOG, "warning", lambda event, **_: warnings.append(event))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as occupied:
        occupied.bind(("127.0.0.1", 0))
        words = LastWords()
        words.listen(f"127.0.0.1:{occupied.getsockname()[1]}", print)
        words.close()
    assert warnings == ["cannot receive last words; a killed adapter will be noticed later"]
