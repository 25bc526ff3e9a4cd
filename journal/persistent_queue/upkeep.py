"""Background work on two threads: one writes checkpoints, recycles blocks and makes the next one; the other commits
groups that no caller waits for.

Writes the log only by committing groups, as any caller does. After a failure, in whichever thread, the first thread
releases the callers that wait: the one that saw it may hold locks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tandemfeed.journal.errors import JournalError
from tandemfeed.journal.persistent_queue.blocks.catalogue import Catalogue
from tandemfeed.journal.persistent_queue.blocks.log import QueueLog
from tandemfeed.journal.persistent_queue.blocks.spares import Spares
from tandemfeed.journal.persistent_queue.durability import QueueDurability
from tandemfeed.journal.persistent_queue.items.item_registry import ItemRegistry
from tandemfeed.runtime.threads import start_thread

LOG = logging.getLogger("tandemfeed.journal")
CHANGES_DELAY_S = 0.005  # how long asynchronous changes wait for puts, to join their group


class Checkpointer:
    """Writes checkpoints, and recycles the blocks that recovery then no longer reads.

    Args:
        states: the queue's lock for states.
    """

    def __init__(
        self,
        log: QueueLog,
        catalogue: Catalogue,
        registry: ItemRegistry,
        spares: Spares,
        durability: QueueDurability,
        states: threading.Lock,
    ) -> None:
        self._log = log
        self._catalogue = catalogue
        self._registry = registry
        self._spares = spares
        self._durability = durability
        self._states = states
        self._checkpointing = threading.RLock()
        self.count = 0
        self.next_id = 0  # of the newest checkpoint
        self._at: tuple[int, int] | None = None

    def checkpoint(self) -> None:
        """Record the durable end, so that the next recovery begins there.

        Raises:
            FlushFailed: the queue must fail: the states that changed are not remembered.
        """
        with self._checkpointing:
            position = self._log.durable  # before the changed blocks are taken: see Catalogue.settle
            at = (position.block.ordinal, position.end)
            if at == self._at:
                return
            self.flush_states()
            active_count = self._registry.counts()[0]
            position.block.write_checkpoint(position.end, position.next_id, position.last_at_ns, active_count)
            self._durability.flush_states([position.block])
            self._log.set_words()
            self._at, self.next_id = at, position.next_id
            self.count += 1

    def flush_states(self) -> None:
        """Every state set so far is on the disk when this returns.

        Raises:
            FlushFailed: as of `checkpoint`.
        """
        with self._states:
            changed = self._catalogue.take_changed()
        self._durability.flush_states(changed)

    def recycle(self) -> None:
        """Recycle the blocks that have no active items and that recovery would not read."""
        with self._checkpointing:
            if self._at is None:
                return
            for block in self._registry.idle_blocks(self._at[0]):
                with self._states:
                    mapped = self._catalogue.remove(block)
                self._spares.recycle(mapped)

    def reclaim(self) -> None:
        """Write a checkpoint and recycle, if any block has no active items."""
        if any(count == 0 for _, count in self._registry.counts()[2][:-1]):
            self.checkpoint()
            self.recycle()


class Upkeep:
    """The two threads.

    Args:
        commit: commits a group, if there is anything to commit.
        on_failure: called when a checkpoint could not be written, or a thread failed.
        has_failed: whether the queue has failed.
        release: called after a failure: raises it in all callers that wait.
        interval_s, interval_items: between checkpoints, whichever ends first.
    """

    def __init__(
        self,
        log: QueueLog,
        checkpointer: Checkpointer,
        spares: Spares,
        commit: Callable[[], None],
        on_failure: Callable[[BaseException], object],
        has_failed: Callable[[], bool],
        release: Callable[[], None],
        *,
        interval_s: float,
        interval_items: int,
    ) -> None:
        self._log = log
        self._checkpointer = checkpointer
        self._spares = spares
        self._commit = commit
        self._on_failure = on_failure
        self._has_failed = has_failed
        self._release = release
        self._interval_s = interval_s
        self._interval_items = interval_items
        self._closing = threading.Event()
        self._wake_up = threading.Event()
        self._commit_wake_up = threading.Event()
        self._urgent = threading.Event()
        self._prepared_for = -1
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start both threads."""
        for run, name in ((self._keep, "queue-keeper"), (self._commit_for_others, "queue-committer")):
            self._threads.append(start_thread(run, name, self._on_thread_failure))

    def wake(self) -> None:
        """Have the keeper look whether the queue has failed."""
        self._wake_up.set()

    def after_group(self) -> None:
        """Wake the keeper if a checkpoint or a block is due."""
        next_id = self._log.durable.next_id
        if next_id - self._checkpointer.next_id >= self._interval_items or (
            self._log.is_half_full and self._prepared_for != self._log.position.block.ordinal
        ):
            self._wake_up.set()

    def call_committer(self, *, is_urgent: bool = True) -> None:
        """Have a group committed for futures, or, if not urgent, for asynchronous changes: no caller may be waiting."""
        if is_urgent:
            self._urgent.set()
        if not self._commit_wake_up.is_set():
            self._commit_wake_up.set()

    def close(self) -> None:
        """Finish the current work and stop both threads."""
        self._closing.set()
        self._wake_up.set()
        self._commit_wake_up.set()
        self._urgent.set()
        for thread in self._threads:
            thread.join()

    def _keep(self) -> None:
        due_at = time.monotonic() + self._interval_s
        while True:
            self._wake_up.wait(max(due_at - time.monotonic(), 0))
            if self._has_failed():
                self._release()
                return
            if self._closing.is_set():
                return
            self._wake_up.clear()
            try:
                behind = self._log.durable.next_id - self._checkpointer.next_id
                if time.monotonic() >= due_at or behind >= self._interval_items:
                    self._checkpointer.checkpoint()
                    self._checkpointer.recycle()
                    due_at = time.monotonic() + self._interval_s
                ordinal = self._log.position.block.ordinal
                if self._log.is_half_full and self._prepared_for != ordinal:
                    self._spares.prepare(ordinal + 1)
                    self._prepared_for = ordinal
            except (OSError, JournalError) as reason:
                LOG.exception("could not write a checkpoint")
                self._on_failure(reason)
                self._release()
                return

    def _commit_for_others(self) -> None:
        while True:
            self._commit_wake_up.wait()
            self._urgent.wait(CHANGES_DELAY_S)
            if self._closing.is_set():
                return
            self._commit_wake_up.clear()
            self._urgent.clear()
            with suppress(JournalError):  # every caller of the queue gets the same error
                self._commit()

    def _on_thread_failure(self, name: str, failure: BaseException) -> None:
        LOG.critical("the thread %s failed", name, exc_info=failure)
        self._on_failure(failure)
        self._release()
