"""Which shells are mutated, and which tests must detect their mutants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shell:
    """A module, and the files, folders or node ids of its tests, of which long ones and processes are left out."""

    module: str
    tests: tuple[str, ...]


def _shells(folder: str, names: str, *tests: str) -> tuple[Shell, ...]:
    return tuple(Shell(f"{folder}/{name}.py", tests) for name in names.split())


SHELLS: tuple[Shell, ...] = (
    *_shells("runtime", "durable threads", "tests/runtime"),
    *_shells("journal", "store append/keeper append/durability tailer", "tests/journal/append", "tests/journal/check"),
    *_shells(
        "journal/append", "chain", "tests/journal/replication/test_replication_durability.py", "tests/journal/append"
    ),
    *_shells(
        "journal/persistent_queue",
        "durability group_commit upkeep recovery opening blocks/log blocks/members",
        "tests/journal/persistent_queue",
    ),
    *_shells("journal/transactional", "log/log_writer pages/page_store", "tests/journal/transactional"),
    *_shells("journal/transactional", "pages/recovery", "tests/journal/transactional/test_store_on_a_failing_disk.py"),
    *_shells("journal/replication", "follower/follower leader/leader", "tests/journal/replication"),
    *_shells(
        "journal/replication",
        "follower/follower_journal",
        "tests/journal/replication/test_replication_durability.py",
        "tests/journal/replication/test_replication_shells.py",
    ),
    *_shells("transport", "process_shell ending", "tests/transport/test_process_shell.py"),
    *_shells("transport/calls", "token_source notices/server serving/lanes", "tests/transport/calls"),
    *_shells("transport/unicast", "doorkeeper publisher", "tests/transport/unicast"),
    *_shells(
        "client_lib/reading",
        "cursor reading read_ahead",
        "tests/client_lib/reading",
        "tests/client_lib/test_files_on_a_losing_disk.py",
    ),
    *_shells(
        "client_lib/losses", "loss_report", "tests/client_lib/losses", "tests/client_lib/test_files_on_a_losing_disk.py"
    ),
    *_shells(
        "client_lib/login",
        "grant_stream session",
        "tests/client_lib/login",
        "tests/client_lib/test_client_reconnecting.py",
    ),
    *_shells("client_lib/replay", "worker", "tests/client_lib/replay", "tests/client_lib/test_client_reconnecting.py"),
    *_shells(
        "client_lib/contribution",
        "contribution",
        "tests/client_lib/contribution",
        "tests/client_lib/test_client_reconnecting.py",
    ),
    *_shells("client_lib", "patient_wait", "tests/client_lib/test_patient_wait.py"),
    *_shells("client_lib/stream/sockets", "feed_sockets", "tests/client_lib/stream"),
    *_shells(
        "adapter/reporting",
        "registry report_sender orders guard lifeline fitness stream_keys",
        "tests/adapter/reporting",
        "tests/adapter/test_adapter_reconnects.py",
    ),
    *_shells(
        "adapter/peers", "peer_link peer_calls", "tests/adapter/peers", "tests/adapter/test_adapter_reconnects.py"
    ),
    *_shells("adapter", "mailbox", "tests/adapter/test_mailbox.py"),
    *_shells(
        "adapter",
        "documents",
        "tests/adapter/test_documents.py",
        "tests/adapter/records/test_records_on_a_losing_disk.py",
    ),
    *_shells("adapter/records", "output_journal dead_letter_journal", "tests/adapter/records"),
    *_shells("admin_server/audit", "log log_file", "tests/admin_server/audit"),
    *_shells("admin_server/feed", "timekeeper", "tests/admin_server/feed"),
    *_shells("admin_server/records", "store authority", "tests/admin_server/records"),
    *_shells("admin_server/policy", "policy_keeper", "tests/admin_server/policy"),
    *_shells("spark_feed/journaling", "commit_log pending_batch", "tests/spark_feed/numbering"),
    *_shells("spark_feed/contributions/pair", "log_copy part", "tests/spark_feed/contributions"),
    *_shells("spark_feed/sending", "source_reports", "tests/spark_feed/sending"),
    *_shells("spark_feed/spark/live", "channel_feed", "tests/spark_feed/spark"),
)

# Mutants that no test can notice: module -> the change, as the tool prints it -> the reason.
EQUIVALENT: dict[str, dict[str, str]] = {
    "journal/persistent_queue/durability.py": {
        "- if words[DURABLE // WORD_SIZE] != ordinal + 1:\n+ if words[DURABLE // WORD_SIZE] != ordinal - 1:": (
            "the end in the block is 0 for a moment at every flush, so that a kill then makes more be written again"
        ),
        "- if not self._has_failed:\n+ if True:": "marks what is marked already",
    },
    "admin_server/records/authority.py": {
        "- return not set(extensions) <= found\n+ return not set(extensions) < found": (
            "a certificate has basic constraints, too, so that both are never equal"
        ),
    },
    "journal/transactional/pages/recovery.py": {
        "- durable.flush_file(path)\n+ pass": (
            "a database without a log was flushed when it was created or closed; with one, it was written again above"
        ),
    },
    "journal/replication/follower/follower_journal.py": {
        "- if (blocks := blocks_in(self._folder)):\n+ if False:": (
            "recovery begins a block in the newest cycle or later, and the leader's oldest cycle is later only if the "
            "leader has released all up to there"
        ),
    },
    "client_lib/login/grant_stream.py": {
        "- if not self._closed.is_set() and self._core.requests:\n+ if True and self._core.requests:": (
            "a closed stream waits for nothing"
        ),
    },
    "client_lib/login/session.py": {
        "- self._now_ns, self._renew_at_ns = (now_ns, 0)\n+ self._now_ns, self._renew_at_ns = (now_ns, 1)": (
            "not read before the first login"
        ),
    },
    "client_lib/patient_wait.py": {
        "- self._end_ns = self._watch.now_ns + int(self._timeout_s * 1000000000.0)\n"
        "+ self._end_ns = self._watch.now_ns + int(self._timeout_s * 1000000001.0)": "a nanosecond of each second",
    },
}
