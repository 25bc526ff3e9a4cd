"""The limits of a store with their reasons and relations."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_COUNT_MAX = 512  # entries of a queue read from the page store at a time: about 100 bytes each
POSITION_BLOCK = 1 << 20  # positions reserved on the disk together, so that none is ever assigned twice
TAKEN_MARK_DELAY_S = 0.05  # how long a delivery count waits for another write to join


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What a store may use. Sizes in bytes, times in seconds."""

    group_transactions_max: int = 1_000
    """Transactions in one group commit. Bounds the work if a group fails and is retried one by one."""
    group_bytes_max: int = 8 << 20
    """Message bytes in one group commit; a larger transaction is a group by itself."""
    group_delay_s: float = 0.0
    """How long a group waits for more transactions after its first. Zero: groups form only while the disk is busy,
    which adds no latency; a longer time makes larger groups on a slow disk."""
    pending_bytes_max: int = 64 << 20
    """Message bytes waiting for the log writer; at the limit `commit` and `commit_async` block."""
    pending_transactions_max: int = 10_000
    """Transactions waiting for the log writer; at the limit `commit` and `commit_async` block."""
    log_bytes_max: int = 32 << 20
    """Size of the log at which a checkpoint is made; the log can exceed it by one group. The same amount of disk space
    is kept in reserve, because consuming from a store on a full disk needs space for the log."""
    page_cache_bytes: int = 16 << 20
    """Memory for pages of the page store, for each of its two connections."""
    store_bytes_max: int = 0
    """Size at which the page store is full; zero: as large as the disk."""
    volatile_memory_bytes_max: int = 64 << 20
    """Memory for non-persistent messages; what does not fit goes to swap files."""
    swap_file_bytes_max: int = 64 << 20
    """Size at which a swap file is closed and the next begun; a file is deleted with its last message."""
    swap_bytes_max: int = 4 << 30
    """Size of all swap files."""
    message_bytes_max: int = 16 << 20
    """Size of one message."""
    transaction_bytes_max: int = 64 << 20
    """Persistent message bytes put by one transaction; they stay in memory until it commits or prepares."""
    transaction_operations_max: int = 100_000
    """Messages put, published and taken by one transaction."""
    open_transactions_max: int = 100_000
    """Open or prepared transactions; each needs about 1,000 bytes of memory."""
    locks_count_max: int = 1_000_000
    """Messages locked by all open and prepared transactions; each needs about 200 bytes of memory."""
    queue_messages_max: int = 10_000_000
    """Messages in one queue, including those of open transactions."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 0 or (
                getattr(self, name) == 0 and name not in ("group_delay_s", "store_bytes_max")
            ):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be greater than zero")
        if self.message_bytes_max > self.transaction_bytes_max:
            raise ValueError("message_bytes_max exceeds transaction_bytes_max; such a message could never be committed")
        if self.message_bytes_max > self.swap_bytes_max:
            raise ValueError("message_bytes_max exceeds swap_bytes_max; such a message could never be spilled")
