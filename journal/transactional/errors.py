"""Errors of a transactional store. Each message says what to do."""

from __future__ import annotations

from tandemfeed.journal.errors import JournalError


class TransactionalStoreError(JournalError):
    """Base class of these errors."""


class StoreLocked(TransactionalStoreError):
    """Another process has this store open."""


class ForeignStore(TransactionalStoreError):
    """The file is not a transactional store; it was not changed."""


class NewerStore(TransactionalStoreError):
    """The store was written by a later release; it was not changed."""


class StoreReadOnly(TransactionalStoreError):
    """The folder or a file in it is not writable."""


class StoreFull(TransactionalStoreError):
    """The disk is full or a limit is reached. Nothing of this transaction was done; everything before it is safe."""


class StoreCorrupt(TransactionalStoreError):
    """The store is damaged. Damaged messages are never delivered."""


class StoreFailed(TransactionalStoreError):
    """The disk failed while a group was flushed. Open the store again to find out which transactions it contains."""


class StoreClosed(TransactionalStoreError):
    """The store was closed, or is closing."""


class BadName(TransactionalStoreError):
    """An invalid name of a queue, subscriber, topic or transaction."""


class QueueExists(TransactionalStoreError):
    """A queue or subscriber of this name already exists."""


class NoSuchQueue(TransactionalStoreError):
    """There is no queue or subscriber of this name."""


class QueueInUse(TransactionalStoreError):
    """The queue cannot be deleted: an open or prepared transaction uses it."""


class QueueFull(TransactionalStoreError):
    """The queue has reached its maximum number of messages."""


class NoSuchMessage(TransactionalStoreError):
    """The queue has no message of this number: it never existed, or was consumed."""


class MessageLocked(TransactionalStoreError):
    """Another transaction has locked the message."""


class NotHeld(TransactionalStoreError):
    """The transaction has not locked this message, or has already settled it."""


class TransactionTooLarge(TransactionalStoreError):
    """The transaction, or all open ones together, reached a limit."""


class IllegalTransactionMove(TransactionalStoreError):
    """The transaction's state does not allow this call; the text lists the states it went through."""


class DuplicateGlobalId(TransactionalStoreError):
    """A transaction of this global id is open or prepared, or was decided by hand and not forgotten."""


class NoSuchPrepared(TransactionalStoreError):
    """There is no prepared transaction of this global id: it was never prepared, or is already decided."""


class DecidedByHand(TransactionalStoreError):
    """This transaction was decided by hand; `forget` it once the coordinator knows."""


class CallFromLogWriter(TransactionalStoreError):
    """A callback of `commit_async`, which runs in the log writer's thread, made a call that waits for that thread."""
