"""A decoder remembers what packets of one kind of message look like, and views of them are the model's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemfeed.client_lib.messages.decoding import Decoder
from tests.client_lib.messages.test_gathered_messages import KINDS, XML

DECODER = Decoder(XML.encode())  # of all examples, so that it remembers many packets
UNIFORM = st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 8)).map(lambda pair: [pair[0]] * pair[1])
PACKETS = UNIFORM | st.lists(st.sampled_from(sorted(KINDS)), max_size=8)


def views(source: Decoder, payload: bytes) -> list[tuple[str, bytes]]:
    return [(message.name, rows.tobytes()) for message, rows in source.arrays(memoryview(payload))]


def expected(payload: bytes) -> list[tuple[str, bytes]]:
    return [(message.name, rows.tobytes()) for message, rows in DECODER.model.arrays(payload)]


@given(PACKETS, st.data())
def test_they_are_those_of_the_model_however_often_and_whatever_changes_in_the_packet(
    kinds: list[str], data: st.DataObject
) -> None:
    payload = b"".join(KINDS[kind](number) for number, kind in enumerate(kinds))
    for _ in range(2):
        assert views(DECODER, payload) == expected(payload)
    if payload:  # of the same size, with other bytes
        place, byte = data.draw(st.integers(0, len(payload) - 1)), data.draw(st.binary(min_size=1, max_size=1))
        changed = payload[:place] + byte + payload[place + 1 :]
        assert views(DECODER, changed) == expected(changed)


def test_a_packet_of_a_known_size_with_one_other_message_has_no_view_of_that_message() -> None:
    trade = KINDS["trade"]
    uniform = [trade(number) for number in range(6)]
    assert len(views(DECODER, b"".join(uniform))) == 1
    other = trade(3)[:6] + (2).to_bytes(2, "little") + trade(3)[8:]  # a quote, and too short for one
    mixed = b"".join((*uniform[:3], other, *uniform[4:]))
    found = views(DECODER, mixed)
    assert found == [("Trade", b"".join(uniform[:3])), ("Trade", b"".join(uniform[4:]))]
    assert found == expected(mixed)
