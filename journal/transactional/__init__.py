"""Queues that transactions change all together or not at all; the manual is docs/transactional-store.md.

Usable by itself: standard library only. SQLite is the page store; one thread merges what many clients commit into one
flush. Invariant: what `commit` returned for is there after any crash, and nothing is ever there by half.
"""

from journal.transactional.administration import QueueStatus
from journal.transactional.book import Subscriber
from journal.transactional.errors import (
    BadName,
    CallFromLogWriter,
    DecidedByHand,
    DuplicateGlobalId,
    ForeignStore,
    IllegalTransactionMove,
    MessageLocked,
    NewerStore,
    NoSuchMessage,
    NoSuchPrepared,
    NoSuchQueue,
    NotHeld,
    QueueExists,
    QueueFull,
    QueueInUse,
    StoreClosed,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    TransactionalStoreError,
    TransactionTooLarge,
)
from journal.transactional.limits import StoreLimits
from journal.transactional.store import Statistics, TransactionalStore, subscriber_queue
from journal.transactional.transaction import Message, Transaction
from journal.transactional.transaction_state import TransactionEvent, TransactionState
from journal.transactional.two_phase import PreparedTransaction

__all__ = [
    "BadName",
    "CallFromLogWriter",
    "DecidedByHand",
    "DuplicateGlobalId",
    "ForeignStore",
    "IllegalTransactionMove",
    "Message",
    "MessageLocked",
    "NewerStore",
    "NoSuchMessage",
    "NoSuchPrepared",
    "NoSuchQueue",
    "NotHeld",
    "PreparedTransaction",
    "QueueExists",
    "QueueFull",
    "QueueInUse",
    "QueueStatus",
    "Statistics",
    "StoreClosed",
    "StoreCorrupt",
    "StoreFailed",
    "StoreFull",
    "StoreLimits",
    "StoreLocked",
    "StoreReadOnly",
    "Subscriber",
    "Transaction",
    "TransactionEvent",
    "TransactionState",
    "TransactionTooLarge",
    "TransactionalStore",
    "TransactionalStoreError",
    "subscriber_queue",
]
