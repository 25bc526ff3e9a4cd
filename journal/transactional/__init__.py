"""Queues that transactions change atomically; docs/transactional-store.md is the manual.

Uses only the standard library. SQLite is the page store; one thread merges the commits of many clients into one flush.
Invariant: after any crash, a transaction whose `commit` returned is there, and none is there in part.
"""

from tandemfeed.journal.transactional.administration import QueueStatus
from tandemfeed.journal.transactional.errors import (
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
from tandemfeed.journal.transactional.limits import StoreLimits
from tandemfeed.journal.transactional.memory.store_state import Subscriber
from tandemfeed.journal.transactional.store import Statistics, TransactionalStore, subscriber_queue
from tandemfeed.journal.transactional.transactions.transaction import Message, Transaction
from tandemfeed.journal.transactional.transactions.transaction_state import TransactionEvent, TransactionState
from tandemfeed.journal.transactional.transactions.two_phase import PreparedTransaction

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
