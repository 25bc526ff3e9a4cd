"""What of a journal the disk has, whichever process appended it: flushes it, and remembers a flush that failed.

The control file says up to which place everything is on the disk: segments, end marks, and names of blocks. `flush`
advances that place over what all appenders left after it, also those that died. It trusts no flush twice: after one
failed, the kernel has marked the pages clean. So the journal has failed, for every process and over restarts, until
`write_again` has written everything after the durable place once more. The same applies if a process died while it
flushed, because it may have been the only one to learn of the failure.

An open descriptor makes the kernel keep a file's failed writes in mind. So each block keeps one until it is flushed.

Invariant: the durable place in the control file is never after what the disk has.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from tandemfeed.journal.errors import JournalError, JournalFailed
from tandemfeed.journal.format.block import COMPRESSED_SUFFIX, Block, BlockName, blocks_in
from tandemfeed.journal.format.control import Control
from tandemfeed.journal.format.layout import (
    DATA_OFFSET,
    END,
    FAILED_NAME,
    IS_FAILED,
    LAST_AT,
    LINK_SIZE,
    NEXT_SEQUENCE,
)
from tandemfeed.runtime import durable
from tandemfeed.runtime.threads import mark_unhealthy, start_thread

LOG = logging.getLogger("tandemfeed.journal")
HELD_MAX = 32  # ended blocks with a descriptor; beyond that the oldest is flushed in the background
FAILED_TEXT = b"The disk refused a flush of this journal. Opening the journal writes again what may be lost.\n"


class Chain(Protocol):
    """The blocks of an appender. The caller holds the appenders' lock."""

    def recover(self) -> None:
        """Repair what a dead holder of the lock left."""
        ...

    def caught_up(self) -> Block:
        """The block to append to, after other appenders may have rolled."""
        ...


class Durability:
    """The flushes of one appender.

    Owner: the flushers' lock, which one thread of one process holds. `left` may be called meanwhile.

    Attributes:
        failure: why this appender can no longer append or sync; empty if it can.
        on_failure: called with it.
    """

    def __init__(self, folder: Path, control: Control) -> None:
        self._folder, self._control = folder, control
        self.on_failure: Callable[[str], object] = lambda failure: None
        self._held: dict[int, int] = {}  # descriptors of ended blocks by ordinal, oldest first
        self._holding, self._flushing = threading.Lock(), threading.Lock()
        self._is_flushing_early = False
        self.failure = ""

    # ---- flushing ----

    def flush(self, chain: Chain) -> None:
        """Flush everything that any process appended before the call.

        Args:
            chain: the appender's blocks.

        Raises:
            JournalFailed: the disk refused; every further call raises it too.
            JournalLocked: another process holds a lock and does not continue.
        """
        with self._flushing, self._as_the_flusher(chain):
            with self._locked(chain) as block:
                control = self._control
                end, sequence, at_ns = control.word(END), control.word(NEXT_SEQUENCE), control.word(LAST_AT)
            if control.durable_until()[0] != block.ordinal:
                self._flush_names()
                self._flush_before(block.ordinal)
            block.flush()
            block.write_checkpoint(end, sequence, at_ns)
            control.set_durable(block.ordinal, end)

    def _flush_before(self, ordinal: int) -> None:
        """Flush the blocks before the current one, oldest first; each advances the durable place."""
        former, _ = self._control.durable_until()
        for name in self._after(former):
            if name.ordinal >= ordinal:
                break
            if name.ordinal != former:
                self._control.set_durable(name.ordinal, 0)
            descriptor = self._held.get(name.ordinal)
            if descriptor is not None and name.path.suffix != COMPRESSED_SUFFIX:
                durable.flush(descriptor, name.path)
            else:
                durable.flush_file(name.path)
        self._control.set_durable(ordinal, 0)
        self._let_go(ordinal)

    @contextmanager
    def _as_the_flusher(self, chain: Chain) -> Iterator[None]:
        """Hold the flushers' lock. A flush that is refused makes the journal fail; one that another process did not
        finish is repeated first."""
        self.require_whole()
        was_interrupted, outside = self._control.begin_flush(), sys.exception()
        try:
            if was_interrupted or self._control.word(IS_FAILED):
                with self._locked(chain) as current:
                    self.write_again(current)
            yield
        except BaseException as failed:
            if not self._fail_of(failed, outside):
                raise
            raise JournalFailed(self.failure) from failed
        finally:
            del outside
            self._control.end_flush()

    def _after(self, ordinal: int) -> Iterator[BlockName]:
        """The blocks from an ordinal on."""
        return (name for name in blocks_in(self._folder) if name.ordinal >= ordinal)

    def _flush_names(self) -> None:
        durable.sync_folder(self._folder)
        if self._control.durable_until()[0] < 0:  # a new journal
            durable.sync_name(self._folder)

    # ---- failed flushes ----

    def require_whole(self) -> None:
        """Raises: JournalFailed: after a failed flush."""
        if self.failure:
            raise JournalFailed(self.failure)

    def is_doubtful(self) -> bool:
        """True if a flush failed, or may have failed, and what it concerned was not written again yet."""
        control = self._control
        return control.word(IS_FAILED) == 1 or control.was_flush_interrupted() or self._mark.exists()

    @property
    def _mark(self) -> Path:
        return self._folder / FAILED_NAME

    def restore_interrupted(self) -> None:
        """Before recovery: what a process that died while it wrote again had taken out of the page cache."""
        if self._control.word(IS_FAILED):
            for name in self._after(self._control.durable_until()[0]):
                durable.restore_interrupted(name.path)

    def write_again(self, current: Block) -> None:
        """Write everything after the durable place again. The caller holds both locks and has recovered the journal.

        Raises:
            FlushFailed: the disk still refuses; the journal has failed.
        """
        control = self._control
        control.set_word(IS_FAILED, 1)
        former, durable_end = control.durable_until()
        end, sequence, at_ns = control.word(END), control.word(NEXT_SEQUENCE), control.word(LAST_AT)
        for name in self._after(former):
            if name.path.suffix == COMPRESSED_SUFFIX:
                durable.flush_file(name.path)
                continue
            block = current if name.ordinal == current.ordinal else Block(name.path, writable=False)
            tail, header = block.tail(), block.header
            stop = end if block is current else tail[0] if tail is not None else header.data_end
            start = durable_end if name.ordinal == former else DATA_OFFSET
            pages = (start, min(stop + LINK_SIZE, header.data_end)), (header.state_offset, header.block_size)
            durable.rewrite(name.path, 0, *pages, end=DATA_OFFSET, copied=True)
        current.write_checkpoint(end, sequence, at_ns)
        self._flush_names()
        control.set_durable(current.ordinal, end)
        self._let_go(current.ordinal)
        durable.remove_file(self._mark)
        control.set_word(IS_FAILED, 0)
        LOG.warning("%s: a flush failed or was interrupted; wrote again what it concerned", self._folder)

    def _fail_of(self, failed: BaseException, outside: BaseException | None) -> bool:
        """Fail if an exception stems from a refused flush; False if not."""
        refusal = _refusal_in(failed, outside)
        if refusal is not None:
            self.fail(refusal)
        return refusal is not None

    def fail(self, refusal: OSError) -> None:
        """The disk refused a flush: keep every process from appending until the journal is opened again."""
        self._control.set_word(IS_FAILED, 1)
        cause = refusal.__cause__ if isinstance(refusal.__cause__, OSError) else refusal
        self.failure = (
            f"{self._folder}: the disk refused a flush ({cause.strerror}), so records appended since the last "
            "successful sync may be lost in a power failure; check the disk, then close the journal and open it again, "
            "which writes them again"
        )
        LOG.error("%s", self.failure)
        self.on_failure(self.failure)
        with suppress(JournalError, OSError):  # otherwise other processes learn of it when they flush
            self._control.lock(lambda: None, even_failed=True)  # who opens the journal recovers it
            self._control.park()
        with suppress(OSError):
            durable.replace_file(self._mark, FAILED_TEXT)

    @contextmanager
    def _locked(self, chain: Chain) -> Iterator[Block]:
        self._control.lock(chain.recover)
        try:
            yield chain.caught_up()
        finally:
            self._control.unlock()

    # ---- descriptors of ended blocks ----

    def left(self, block: Block, chain: Chain) -> Callable[[], object] | None:
        """The appender leaves an ended block. Returns the start of a flush in the background, if one is due."""
        with self._holding:
            if block.ordinal not in self._held:
                with suppress(OSError):  # without a descriptor it is flushed by its name
                    self._held[block.ordinal] = block.duplicate()
            if len(self._held) <= HELD_MAX or self._is_flushing_early:
                return None
            self._is_flushing_early = True
        # Not on the keeper's thread, for which a roll waits with the appenders' lock, for which a flush waits.
        return partial(start_thread, partial(self._flush_early, chain), "journal-flush", mark_unhealthy)

    def _flush_early(self, chain: Chain) -> None:
        """Flush the blocks that ended long ago, so that a journal that is never synced keeps few descriptors.

        Cheap: the kernel has long since written them.
        """
        try:
            with self._flushing, self._as_the_flusher(chain):
                for ordinal in list(self._held)[: -HELD_MAX // 2]:
                    durable.flush(self._held[ordinal], self._folder)
                    with self._holding:
                        os.close(self._held.pop(ordinal))
        except JournalError:  # the next append or sync raises it
            LOG.warning("%s: could not flush ended blocks", self._folder, exc_info=True)
        finally:
            self._is_flushing_early = False

    def forget_removed(self) -> None:
        """Close the descriptors of blocks that were released or compressed, so that their space becomes free."""
        with self._holding:
            for ordinal in [each for each, descriptor in self._held.items() if not os.fstat(descriptor).st_nlink]:
                os.close(self._held.pop(ordinal))

    def _let_go(self, ordinal: int) -> None:
        """Close the descriptors of blocks before an ordinal."""
        with self._holding:
            for each in [held for held in self._held if held < ordinal]:
                os.close(self._held.pop(each))

    def close(self) -> None:
        """Close all descriptors. Takes no lock: a forked child calls it, in which no thread would release one."""
        held, self._held = self._held, {}
        for descriptor in held.values():
            os.close(descriptor)


def _refusal_in(failed: BaseException, outside: BaseException | None) -> OSError | None:
    """The refused flush that an exception stems from, also if a signal interrupted its handling.

    Args:
        outside: what was being handled before.
    """
    each: BaseException | None = failed
    while each is not None and each is not outside:
        if isinstance(each, durable.FlushFailed) or (isinstance(each, OSError) and not isinstance(failed, Exception)):
            return each
        each = each.__cause__ or each.__context__
    return None
