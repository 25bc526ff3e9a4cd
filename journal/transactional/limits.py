"""Every limit of the store with its reason, and their relations."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW_COUNT_MAX = 512  # entries of a queue read ahead: some 100 bytes each, and one read of the page store per so many
POSITION_BLOCK = 1 << 20  # positions reserved on the disk at once, so that no position is ever given twice
TAKEN_MARK_DELAY_S = 0.05  # a delivery this old is on the disk: shorter ones cost no write of their own


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What a store may use. Sizes in bytes, times in seconds."""

    group_transactions_max: int = 1_000
    """Transactions in one group commit: bounds what a failing group must repeat one by one."""
    group_bytes_max: int = 8 << 20
    """Message bytes in one group commit; a larger transaction is a group by itself."""
    group_delay_s: float = 0.0
    """How long a group waits for more after its first transaction. Zero: groups form while the disk is busy, which
    costs no latency; more makes larger groups on a slow disk."""
    pending_bytes_max: int = 64 << 20
    """Message bytes that wait for the log writer; `commit` and `commit_async` then wait for room."""
    pending_transactions_max: int = 10_000
    """Transactions that wait for the log writer; likewise."""
    log_bytes_max: int = 32 << 20
    """Size of the log at which a checkpoint is made; it can grow past this by one group. As much disk is kept
    in reserve, because a full disk that has no room for the log could not even be consumed from."""
    page_cache_bytes: int = 16 << 20
    """Memory for pages of the page store, for each of its two connections."""
    store_bytes_max: int = 0
    """Size at which the page store is full; zero: as large as the disk."""
    volatile_memory_bytes_max: int = 64 << 20
    """Memory for non-persistent messages; what does not fit goes to swap files."""
    swap_file_bytes_max: int = 64 << 20
    """Size at which a swap file is closed and the next begun; a file goes when its last message does."""
    swap_bytes_max: int = 4 << 30
    """Size of all swap files."""
    message_bytes_max: int = 16 << 20
    """Size of one message."""
    transaction_bytes_max: int = 64 << 20
    """Persistent message bytes put by one transaction; they are in memory until it commits or prepares."""
    transaction_operations_max: int = 100_000
    """Messages put, published and taken by one transaction."""
    open_transactions_max: int = 100_000
    """Transactions that are open or prepared: each costs some 1,000 bytes of memory."""
    locks_count_max: int = 1_000_000
    """Messages locked by all open and prepared transactions: each costs some 200 bytes of memory."""
    queue_messages_max: int = 10_000_000
    """Messages in one queue, those of open transactions included."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 0 or (
                getattr(self, name) == 0 and name not in ("group_delay_s", "store_bytes_max")
            ):
                raise ValueError(f"{name} is {getattr(self, name)}: it must be greater than zero")
        if self.message_bytes_max > self.transaction_bytes_max:
            raise ValueError("message_bytes_max exceeds transaction_bytes_max: such a message could never be committed")
        if self.message_bytes_max > self.swap_bytes_max:
            raise ValueError("message_bytes_max exceeds swap_bytes_max: such a message could never be spilled")
