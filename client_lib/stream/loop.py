"""The loop of one subscription: sockets, letters of the background threads, and the timer of its `Channels`.

The loop runs in the thread that polls; no other thread handles messages. Two background threads (replay, grant) reach
it only through the mailbox. It is deliberately dull: it has no sequence arithmetic.

All queues are bounded: datagrams in ZeroMQ's queue of each receiver (`receive_queue_count_max`; replay fills the loss
after an overflow), letters in the mailbox (MAILBOX_COUNT_MAX; replay slows down), early packets in the merger
(`MergerConfig.held_count_max`), and the result of a `poll` by DRAIN_COUNT_MAX datagrams for each group.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import zmq

from tandemfeed.client_lib.items import Item, Revoked
from tandemfeed.client_lib.login.grant import Grant
from tandemfeed.client_lib.login.session import Session
from tandemfeed.client_lib.losses.loss_report import LossReport
from tandemfeed.client_lib.reading.lag import QueueWatch
from tandemfeed.client_lib.replay.worker import Replayed, ReplayEnded, ReplayWorker
from tandemfeed.client_lib.stream.channels import Channels
from tandemfeed.client_lib.stream.grant_box import GrantBox
from tandemfeed.client_lib.stream.mailbox import Mailbox
from tandemfeed.client_lib.stream.receivers import Receiver, Receivers
from tandemfeed.feedcore.deadlines import earliest
from tandemfeed.feedcore.merge.effects import RequestReplay

# Datagrams per group and turn: 2 to 4 ms of work. A turn in which a late line only repeats what was delivered must be
# short, because on a busy machine it takes four times as long, and nothing is delivered meanwhile.
DRAIN_COUNT_MAX = 32
MAILBOX_COUNT_MAX = 256


class Letters:
    """What the background threads send to a loop. It exists before the loop, which needs a grant first."""

    def __init__(self) -> None:
        self.mailbox: Mailbox[Replayed | ReplayEnded] = Mailbox(MAILBOX_COUNT_MAX)
        self.grants = GrantBox(self.mailbox.wake)


class Loop:
    """Made, polled and closed by one thread at a time.

    Args:
        report: takes the losses that the channels notice.
        channels_of: makes the channels, which call the given function for replays.
        receivers_of: makes the sockets.
        reports_lag: deliver events when receive queues are full for long.

    Attributes:
        channels: what the loop feeds.
        queues: whether receive queues have been full for long.
        is_over: nothing more will come.
    """

    def __init__(
        self,
        session: Session,
        letters: Letters,
        report: LossReport,
        channels_of: Callable[[Callable[[RequestReplay], None]], Channels],
        receivers_of: Callable[[zmq.Context[Any], zmq.Poller], Receivers],
        *,
        reports_lag: bool,
    ) -> None:
        self._letters, self._report = letters, report
        self._mailbox, self.is_over = letters.mailbox, False
        self.datagram_count = self.replayed_count = 0
        self.queues, self._reports_lag = QueueWatch(), reports_lag
        self._last_item: Revoked | None = None
        self._context: zmq.Context[Any] = zmq.Context()
        self._poller = zmq.Poller()
        self._poller.register(self._mailbox.fd, zmq.POLLIN)
        self.receivers = receivers_of(self._context, self._poller)
        self._replay = ReplayWorker(session, self._mailbox.put)
        try:
            self.channels = channels_of(self._replay.request)
            self._connect(self.channels.grant)
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Make `poll` return. Any thread or signal handler may call this."""
        self.is_over = True
        self._mailbox.wake()

    def close(self) -> None:
        """Leave the groups and end the background threads."""
        self._mailbox.close()
        self._replay.close()
        self.receivers.close()
        self._context.destroy(linger=0)

    def poll(self, timeout_s: float | None) -> list[Item]:
        """Run until there are items, the time-out has passed or the loop is over."""
        give_up_at_ns = None if timeout_s is None else time.monotonic_ns() + int(timeout_s * 1e9)
        channels, ready = self.channels, self.channels.ready
        while not self.is_over:
            deadline_ns = earliest(channels.next_deadline_ns(), self.receivers.next_deadline_ns())
            wake_at_ns = earliest(deadline_ns, give_up_at_ns)
            wait_ms = -1 if wake_at_ns is None else max(0, -(-(wake_at_ns - time.monotonic_ns()) // 1_000_000))
            if ready:  # what a snapshot or a grant made needs no packet
                wait_ms = 0
            has_more = False
            for socket, _ in self._poller.poll(wait_ms):
                receiver = self.receivers.of_socket(socket)
                if receiver is not None:
                    has_more |= self._drain(receiver)
                elif socket == self._mailbox.fd:
                    self._read_letters()
            now_ns = time.monotonic_ns()
            lag = self.queues.on_turn(has_more=has_more, now_ns=now_ns)
            if lag is not None and self._reports_lag:
                ready.append(lag)
            channels.losses.is_behind = self.queues.has_lagged(now_ns)
            if deadline_ns is not None and now_ns >= deadline_ns:
                channels.on_timer(now_ns)
                ready += self.receivers.on_timer(now_ns, self._drain_whole)
            if self._last_item is not None:  # after everything else of this turn
                ready.append(self._last_item)
                self.is_over = True
            if channels.losses.found and (failed := self._report.write(channels.losses.take())) is not None:
                ready.append(failed)
            if ready:
                items = list(ready)
                ready.clear()
                return items
            if give_up_at_ns is not None and now_ns >= give_up_at_ns:
                break
        return []

    def _drain(self, receiver: Receiver) -> bool:
        """Take up to DRAIN_COUNT_MAX datagrams; False if there are no more."""
        receive, on_datagram, is_heard = receiver.receive, self.channels.on_datagram, False
        for _ in range(DRAIN_COUNT_MAX):
            datagram = receive()
            if datagram is None:
                return False
            self.datagram_count += 1
            if on_datagram(datagram, receiver) and not is_heard:
                is_heard = True
                self.receivers.on_heard(receiver, time.monotonic_ns())
        return True

    def _drain_whole(self, receiver: Receiver) -> None:
        while self._drain(receiver):
            pass

    def _read_letters(self) -> None:
        self._mailbox.acknowledge()
        self._take_grant()
        letter = self._mailbox.take()
        if letter is None:
            return
        self._mailbox.wake()  # one letter a turn, so that a long replay does not starve the live stream
        if isinstance(letter, ReplayEnded):
            self._replay.ended(letter.request.channel_id)
            self.channels.on_replay_ended(letter.request, is_answered=letter.is_answered)
            return
        self.replayed_count += len(letter.packets) + len(letter.refused)
        self.channels.on_replayed(letter)

    def _take_grant(self) -> None:
        revoked, grant = self._letters.grants.take()
        if revoked is not None:
            item = Revoked(revoked.reason, revoked.topics, revoked.is_last)
            if revoked.is_last:
                self._last_item = item
            else:
                self.channels.ready.append(item)
                self.channels.revoke(revoked.topics)
        if grant is not None and self._last_item is None:
            self.channels.change(grant)
            self._connect(grant)

    def _connect(self, grant: Grant) -> None:
        """Use the sockets and replay services of a grant."""
        self.channels.ready += self.receivers.apply(grant, time.monotonic_ns(), self._drain_whole)
        self._replay.set_adapters(tuple(grant.adapters[adapter_id] for adapter_id in sorted(grant.adapters)))
