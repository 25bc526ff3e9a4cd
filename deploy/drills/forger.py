"""`tandemfeed forger`: sends every kind of packet that a subscriber with a valid key can forge. For drills.

It logs in like any subscriber, gets a grant, and receives the feed. With the channel's key it seals packets in the name
of every announced start of every adapter. It lacks the decision key and the adapters' private keys, and uses random
bytes and its own key instead. So no adapter may act on its packets, and none may reach an application that subscribed
with `verify="signed"`. Everything it knows comes from its grant; it has no other privilege.
"""

from __future__ import annotations

import argparse
import itertools
import os
import queue
import select
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

import zmq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tandemfeed.client_lib.login.grant import Grant, GrantedAdapter
from tandemfeed.client_lib.login.grant_stream import GrantLetter, GrantStream
from tandemfeed.client_lib.login.session import Session
from tandemfeed.feedcore.wire.lineage import Lineage
from tandemfeed.feedcore.wire.output_packet import (
    DATAGRAM_SIZE_MAX,
    DECISION_TAG_SIZE,
    OutputFlag,
    OutputPacket,
    encode_output_header,
    encode_runs,
)
from tandemfeed.feedcore.wire.refusal import PacketRefused
from tandemfeed.runtime.zeromq import Context
from tandemfeed.transport.multicast.sockets import Multicast, MulticastSender
from tandemfeed.transport.process_shell import (
    StopSignal,
    add_connection_arguments,
    announce,
    announce_ready,
    configure_logging,
    connection_from,
)
from tandemfeed.transport.sealing.announced_starts import AnnouncedStart
from tandemfeed.transport.sealing.opening import ReceivedPacket, StreamOpener
from tandemfeed.transport.sealing.sealing import COUNTER_MAX
from tandemfeed.transport.sealing.start_keys import NONCE, Purpose, SealingKey, derive_cipher
from tandemfeed.transport.sealing.stream_signatures import DIGEST_SIZE, SIGNATURE_MAGIC, sign

RATE_DEFAULT = 5_000.0  # packets per second: several times what an adapter sends, for a tenth of a core
SECONDS_DEFAULT = 60.0
TURN_S = 0.005
CATCH_UP_TURNS_MAX = 4  # packets that are later than this are not sent
HEARD_COUNT_MAX = 512  # datagrams received per group and turn
CAPTURED_COUNT_MAX = 1_024  # datagrams kept for sending again, up to a few seconds old
GRANT_TIMEOUT_S = 30.0
HUGE_EPOCH = 2**32 - 2
JUST_AHEAD = 64  # counters
DIGESTS_FORGED = 20
ALTERED_SIZE = 24  # bytes at the end of a message: its prices and quantities
assert DIGEST_SIZE == DECISION_TAG_SIZE  # the same random bytes stand for either


class ForgedStart:
    """Imitates one start of an adapter on one channel.

    Args:
        adapter: the adapter to impersonate.
        key: the channel's key, without the decision key.
        tag: random bytes; used in every forged packet instead of the decision tag, and in every signature instead of
            digests. The forger recognises its own datagrams by it.
    """

    def __init__(self, feed_id: int, adapter: GrantedAdapter, start: AnnouncedStart, key: SealingKey, tag: bytes):
        self.start, self.channel_id = start, key.channel_id
        self.group = adapter.groups[key.channel_id].encode()
        self._feed_id, self._key_id, self._tag = feed_id, key.key_id, tag
        self._sealing = derive_cipher(key, start, feed_id, Purpose.SEALING)
        self._signatures = derive_cipher(key, start, feed_id, Purpose.SIGNATURES)
        self._private_key = Ed25519PrivateKey.generate()

    def seal(self, packet: OutputPacket, counter: int) -> bytes:
        """A packet with a valid seal and any counter."""
        header = encode_output_header(
            packet,
            key_id=self._key_id,
            incarnation=self.start.incarnation,
            packet_counter=counter,
            sent_at_ns=time.time_ns(),
        )
        nonce = NONCE.pack(self.start.incarnation, counter)
        return header + self._sealing.encrypt(nonce, packet.payload, header) + self._tag

    def sign(self, first_counter: int) -> bytes:
        """A signature datagram with a valid seal, over made-up digests, signed by a key that was never announced."""
        return sign(
            self._private_key,
            self._signatures,
            self.start,
            feed_id=self._feed_id,
            channel_id=self.channel_id,
            key_id=self._key_id,
            first_counter=first_counter,
            digests=[self._tag] * DIGESTS_FORGED,
            sent_at_ns=time.time_ns(),
        )


class Eavesdropper:
    """Receives the real stream.

    Attributes:
        newest: (adapter_id, channel_id) -> the newest packet with messages.
        captured: (group, datagram) of the newest datagrams, to be sent again.
    """

    def __init__(self, grant: Grant, context: zmq.Context[zmq.Socket[bytes]], multicast: Multicast, tag: bytes) -> None:
        self.newest: dict[tuple[int, int], ReceivedPacket] = {}
        self.captured: deque[tuple[bytes, bytes]] = deque(maxlen=CAPTURED_COUNT_MAX)
        self._tag = tag
        self._opener = StreamOpener(grant.feed_id)
        self._receivers = [multicast.receiver(context, group) for group in sorted(grant.groups)]
        self.use_grant(grant)

    def use_grant(self, grant: Grant) -> None:
        """Use the keys of this grant from now on."""
        self._opener.announce(grant.starts)
        for key in grant.keys.values():
            self._opener.add_key(key.sealing)

    def hear(self) -> None:
        """Receive the datagrams that have arrived."""
        for receiver in self._receivers:
            for _ in range(HEARD_COUNT_MAX):
                datagram = receiver.receive()
                if datagram is None:
                    break
                if self._tag not in datagram:
                    self._take(receiver.group.encode(), datagram)

    def close(self) -> None:
        """Leave the groups."""
        for receiver in self._receivers:
            receiver.close()

    def _take(self, group: bytes, datagram: bytes) -> None:
        self.captured.append((group, datagram))
        if datagram.startswith(SIGNATURE_MAGIC):
            return
        try:
            heard = self._opener.open(datagram)
        except PacketRefused:
            return
        if isinstance(heard, ReceivedPacket) and heard.packet.message_count:
            self.newest[heard.packet.adapter_id, heard.packet.channel_id] = heard


class Forger:
    """Makes forged datagrams of each kind in turn, in the name of each start in turn. It does not send them.

    Args:
        grant: the forger's grant.
        listener: receives the real stream.
        tag: marks the forger's own datagrams.
    """

    def __init__(self, grant: Grant, listener: Eavesdropper, tag: bytes) -> None:
        self._listener, self._tag = listener, tag
        self._number = 0
        self.made: Counter[str] = Counter()
        self.use_grant(grant)

    def use_grant(self, grant: Grant) -> None:
        """Impersonate the adapters of this grant from now on."""
        self._grant = grant
        self._starts = [
            ForgedStart(grant.feed_id, adapter, start, key.sealing, self._tag)
            for adapter in grant.adapters.values()
            for start in adapter.starts
            for key in grant.keys.values()
            if key.sealing.channel_id in adapter.groups
        ]

    def datagrams(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields (group, datagram) without end, or until there is no start to impersonate."""
        kinds: dict[str, Callable[[ForgedStart], bytes | None]] = {
            "huge_epoch": self._huge_epoch,
            "decision": self._decision,
            "end_of_epoch": self._end_of_epoch,
            "announcement": self._announcement,
            "counter_near_the_end": self._counter_near_the_end,
            "signature": self._signature,
        }
        for kind in itertools.cycle([*kinds, "sent_again"]):
            for start in tuple(self._starts):
                self._number += 1
                if kind == "sent_again":
                    again = self._sent_again(start)
                    if again is not None:
                        self.made[kind] += 1
                        yield again
                elif (datagram := kinds[kind](start)) is not None:
                    self.made[kind] += 1
                    yield start.group, datagram
            if not self._starts:
                return

    # ---- the kinds ----

    def _huge_epoch(self, start: ForgedStart) -> bytes:
        """A heartbeat as if from the active of a huge epoch, with a matching lineage."""
        return start.seal(self._heartbeat(start, OutputFlag.FROM_ACTIVE, HUGE_EPOCH), self._counter(start))

    def _end_of_epoch(self, start: ForgedStart) -> bytes:
        """A heartbeat that ends the current epoch."""
        flags = OutputFlag.FROM_ACTIVE | OutputFlag.EPOCH_ENDED
        return start.seal(self._heartbeat(start, flags, self._epoch(start)), self._counter(start))

    def _counter_near_the_end(self, start: ForgedStart) -> bytes:
        """An ordinary heartbeat with a packet counter near the end of its range."""
        counter = COUNTER_MAX - self._number % JUST_AHEAD
        return start.seal(self._heartbeat(start, OutputFlag.NONE, self._epoch(start)), counter)

    def _decision(self, start: ForgedStart) -> bytes | None:
        """The next messages of the stream, with altered content."""
        made = self._continued(start, OutputFlag.FROM_ACTIVE)
        return None if made is None else start.seal(made, self._counter(start))

    def _announcement(self, start: ForgedStart) -> bytes | None:
        """The next decision, without its messages."""
        made = self._continued(start, OutputFlag.FROM_ACTIVE | OutputFlag.ANNOUNCEMENT)
        return None if made is None else start.seal(made, self._counter(start))

    def _signature(self, start: ForgedStart) -> bytes:
        """A signature over the next packets."""
        return start.sign(self._counter(start))

    def _sent_again(self, start: ForgedStart) -> tuple[bytes, bytes] | None:
        """A real datagram, sent again in its own group or in another one."""
        captured = self._listener.captured
        if not captured:
            return None
        group, datagram = captured[self._number % len(captured)]
        return (group if self._number % 2 else start.group), datagram

    # ---- parts of the datagrams ----

    def _newest(self, start: ForgedStart) -> ReceivedPacket | None:
        return self._listener.newest.get((start.start.adapter_id, start.channel_id))

    def _counter(self, start: ForgedStart) -> int:
        """A counter just ahead of the impersonated adapter's."""
        newest = self._newest(start)
        ended = start.start.next_counters.get(start.channel_id, 1) if newest is None else newest.counter
        return ended + 1 + self._number % JUST_AHEAD

    def _epoch(self, start: ForgedStart) -> int:
        newest = self._newest(start)
        return max(1, self._grant.epoch) if newest is None else newest.packet.epoch

    def _heartbeat(self, start: ForgedStart, flags: int, epoch: int) -> OutputPacket:
        newest = self._newest(start)
        input_seq, message_seq = (
            (1, 1) if newest is None else (newest.packet.end_input_seq, newest.packet.end_message_seq)
        )
        payload = Lineage().opened(epoch, input_seq, message_seq).encode(DATAGRAM_SIZE_MAX)
        return OutputPacket(
            flags | OutputFlag.HEARTBEAT,
            self._grant.feed_id,
            start.channel_id,
            start.start.adapter_id,
            self._grant.session,
            epoch,
            input_seq,
            message_seq,
            0,
            (),
            0,
            0,
            payload,
        )

    def _continued(self, start: ForgedStart, flags: int) -> OutputPacket | None:
        """A packet that continues the newest real one: its runs, moved up, and its messages, altered."""
        newest = self._newest(start)
        if newest is None:
            return None
        packet = newest.packet
        runs = tuple(
            run._replace(
                first_input_seq=run.first_input_seq + packet.end_input_seq - packet.first_input_seq,
                first_message_seq=run.first_message_seq + packet.message_count,
                first_source_seq=run.first_source_seq + run.source_count,
            )
            for run in packet.runs
        )
        frames = packet.payload[packet.messages_offset :]
        altered = frames[:-ALTERED_SIZE] + bytes(byte ^ 1 for byte in frames[-ALTERED_SIZE:])
        return packet._replace(
            flags=flags,
            first_input_seq=packet.end_input_seq,
            first_message_seq=packet.end_message_seq,
            runs=runs,
            payload=encode_runs(runs) + (b"" if flags & OutputFlag.ANNOUNCEMENT else altered),
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Log in as a subscriber, wait for a line on standard input, then send forged packets of every kind for a while.

    The drill `forge` uses this command to show that no adapter or client acts on forged packets."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tandemfeed forger", description=main.__doc__)
    parser.add_argument("--feed", required=True, metavar="NAME", help="name of the feed")
    parser.add_argument(
        "--rate", type=float, default=RATE_DEFAULT, metavar="N", help="packets per second (default %(default)g)"
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS_DEFAULT, metavar="S", help="how long to send (default %(default)g)"
    )
    add_connection_arguments(parser)
    arguments = parser.parse_args(argv)
    for option, value in (("--rate", arguments.rate), ("--seconds", arguments.seconds)):
        if value <= 0:
            parser.error(f"{option} is {value:g}; it must be greater than 0")
    configure_logging("forger", arguments.log_level)
    connection = connection_from(parser, arguments)
    stop = StopSignal()
    letters: queue.SimpleQueue[GrantLetter] = queue.SimpleQueue()
    session = Session(connection.admin, connection.ca_pem, connection.identity, connection.credential)
    grants = GrantStream(session)
    context = Context()
    try:
        _, grant = grants.subscribe(arguments.feed, (), letters.put, GRANT_TIMEOUT_S)
        tag = os.urandom(DECISION_TAG_SIZE)
        listener = Eavesdropper(grant, context, connection.multicast, tag)
        sender = connection.multicast.sender(context, datagram_size_max=DATAGRAM_SIZE_MAX)
        forger = Forger(grant, listener, tag)
        announce_ready(feed=arguments.feed)
        select.select([sys.stdin, stop], [], [])

        def turn() -> None:
            listener.hear()
            while not letters.empty():
                letter = letters.get()
                if isinstance(letter, Grant):
                    listener.use_grant(letter)
                    forger.use_grant(letter)

        began_s = time.monotonic()
        _send_at(arguments.rate, arguments.seconds, forger.datagrams(), sender, turn, stop)
        seconds = time.monotonic() - began_s
        announce("forged", packets=forger.made.total(), seconds=round(seconds, 1), kinds=dict(forger.made))
    finally:
        grants.close()
        context.close()
    return 0


def _send_at(
    rate: float,
    seconds: float,
    datagrams: Iterator[tuple[bytes, bytes]],
    sender: MulticastSender,
    turn: Callable[[], None],
    stop: StopSignal,
) -> None:
    """Send datagrams at a rate, one burst per turn; those that are late by more than `CATCH_UP_TURNS_MAX` turns are
    skipped."""
    began_s = time.monotonic()
    sent = 0
    while (passed_s := time.monotonic() - began_s) < seconds and not stop.wait(TURN_S):
        turn()
        due = int(passed_s * rate)
        burst = min(due - sent, int(CATCH_UP_TURNS_MAX * TURN_S * rate) + 1)
        sent = due
        for group, datagram in itertools.islice(datagrams, burst):
            sender.send(group, datagram)
