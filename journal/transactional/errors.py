"""What can go wrong with a transactional store, each with what to do about it in its text."""

from __future__ import annotations

from journal.errors import JournalError


class TransactionalStoreError(JournalError):
    """Any of the below."""


class StoreLocked(TransactionalStoreError):
    """Another process has this store open."""


class ForeignStore(TransactionalStoreError):
    """The file in the store's place is not a store of ours; it was not touched."""


class NewerStore(TransactionalStoreError):
    """The store was written by a later release; it was not touched."""


class StoreReadOnly(TransactionalStoreError):
    """The folder or a file in it may not be written."""


class StoreFull(TransactionalStoreError):
    """No room on the disk or below a limit; nothing of this transaction was done, everything before it is safe."""


class StoreCorrupt(TransactionalStoreError):
    """Bytes of the store are not what was written; what is damaged is never served."""


class StoreFailed(TransactionalStoreError):
    """The disk failed while a group was made durable: open the store again to learn which transactions are in it."""


class StoreClosed(TransactionalStoreError):
    """The store was closed, or is closing."""


class BadName(TransactionalStoreError):
    """A name of a queue, subscriber, topic or transaction that is not allowed."""


class QueueExists(TransactionalStoreError):
    """A queue or subscriber of this name is there already."""


class NoSuchQueue(TransactionalStoreError):
    """No queue or subscriber of this name."""


class QueueInUse(TransactionalStoreError):
    """An open or prepared transaction has messages of this queue, so it cannot go."""


class QueueFull(TransactionalStoreError):
    """The queue holds as many messages as it may."""


class NoSuchMessage(TransactionalStoreError):
    """No message of this number in the queue: never there, or consumed."""


class MessageLocked(TransactionalStoreError):
    """Another transaction has the message."""


class NotHeld(TransactionalStoreError):
    """The transaction does not have this message, or has settled it already."""


class TransactionTooLarge(TransactionalStoreError):
    """The transaction, or all open ones together, reached a limit."""


class IllegalTransactionMove(TransactionalStoreError):
    """A caller asked for what its transaction's state does not allow; the text tells the transaction's story."""


class DuplicateGlobalId(TransactionalStoreError):
    """A transaction of this global id is open, prepared, or was decided by hand and is not forgotten."""


class NoSuchPrepared(TransactionalStoreError):
    """No prepared transaction of this global id: never prepared, or decided."""


class DecidedByHand(TransactionalStoreError):
    """Somebody decided this transaction by hand; `forget` it once the coordinator has taken note."""


class CallFromLogWriter(TransactionalStoreError):
    """A callback of `commit_async` called what waits for the log writer, which is the thread it runs in."""
