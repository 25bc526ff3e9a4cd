"""Only one process at a time may register as an adapter: the decisions."""

from __future__ import annotations

import pytest

from tandemfeed.admin_server.feed.members.registrations import (
    AnotherProcess,
    ProcessRecord,
    ProcessStart,
    Registrations,
    ReturnAwaited,
)

MS = 1_000_000
ATTENDED_NS = 1_000 * MS
FIRST = ProcessStart(b"1" * 16, 4711, "exchange-1", "ipv4:10.0.0.1:5000")
SECOND = ProcessStart(b"2" * 16, 4712, "exchange-2", "ipv4:10.0.0.2:5000")
THIRD = ProcessStart(b"3" * 16)
SINCE_UNIX_NS = 86_401 * 1_000_000_000  # 1970-01-02T00:00:01Z


def registered(*starts: ProcessStart) -> Registrations:
    """Registrations in which these processes have registered as adapter 1, in this order."""
    registrations = Registrations(ATTENDED_NS)
    for start in starts:
        registrations.note(1, start, SINCE_UNIX_NS)
    return registrations


def test_a_second_process_is_refused_while_the_first_attends_and_the_error_names_the_first() -> None:
    with pytest.raises(AnotherProcess) as refused:
        registered(FIRST).check(1, "a", SECOND, heard_at_ns=5, now_ns=5 + ATTENDED_NS)
    assert str(refused.value) == (
        "another process has been registered as a since 1970-01-02T00:00:01Z: process 4711 on host 'exchange-1', from "
        "ipv4:10.0.0.1:5000; stop it, or start this one with --replace"
    )


def test_the_description_of_a_process_omits_what_is_unknown() -> None:
    assert str(THIRD) == "a process, from an unknown address"


def test_a_process_that_is_away_or_hung_does_not_prevent_another_from_registering() -> None:
    registered(FIRST).check(1, "a", SECOND, heard_at_ns=None, now_ns=5)
    registered(FIRST).check(1, "a", SECOND, heard_at_ns=5, now_ns=6 + ATTENDED_NS)


def test_the_same_process_and_processes_of_other_adapters_are_not_refused() -> None:
    registered(FIRST).check(1, "a", FIRST, heard_at_ns=5, now_ns=5)
    registered(FIRST).check(2, "b", SECOND, heard_at_ns=5, now_ns=5)


def test_a_process_can_replace_another_which_is_then_refused() -> None:
    registrations = registered(FIRST)
    registrations.check(1, "a", SECOND, heard_at_ns=5, now_ns=5, is_replacing=True)
    registrations.note(1, SECOND, SINCE_UNIX_NS)
    for is_replacing in (False, True):
        with pytest.raises(AnotherProcess, match=r"this process was replaced: since .* process 4712 on host"):
            registrations.check(1, "a", FIRST, heard_at_ns=None, now_ns=5, is_replacing=is_replacing)
    registrations.check(1, "a", THIRD, heard_at_ns=None, now_ns=5)


def test_a_process_that_registers_again_replaces_no_other() -> None:
    registrations = registered(FIRST, FIRST, SECOND, SECOND)
    registrations.check(1, "a", SECOND, heard_at_ns=5, now_ns=5)
    registrations.check(1, "a", THIRD, heard_at_ns=None, now_ns=5)
    registrations.note(1, SECOND, 2 * SINCE_UNIX_NS)
    assert registrations.record(1) == ProcessRecord(SECOND, SINCE_UNIX_NS, replaced=(FIRST.nonce,))


def test_the_stream_of_an_adapter_that_has_not_registered_leaves_no_record() -> None:
    registrations = Registrations(ATTENDED_NS)
    registrations.note_attended(1, True)
    assert registrations.record(1) is None


# ---- after a restart of the server ----


def restarted(record: ProcessRecord | None, began_at_ns: int = 0) -> Registrations:
    """The registrations of a restarted server, with this record of adapter 1."""
    assert record is not None
    return Registrations(ATTENDED_NS, {1: record}, began_at_ns=began_at_ns)


def test_after_a_restart_other_processes_wait_for_the_registered_one_to_return() -> None:
    registrations = restarted(registered(FIRST).record(1), began_at_ns=7)
    for now_ns in (7, 7 + ATTENDED_NS):
        with pytest.raises(ReturnAwaited) as awaited:
            registrations.check(1, "a", SECOND, heard_at_ns=None, now_ns=now_ns)
    assert str(awaited.value) == (
        "the admin server has just started, and another process was registered as a: process 4711 on host "
        "'exchange-1', from ipv4:10.0.0.1:5000; if it does not return within 1 s, this one may register"
    )
    registrations.check(1, "a", SECOND, heard_at_ns=None, now_ns=8 + ATTENDED_NS)
    registrations.check(2, "b", SECOND, heard_at_ns=None, now_ns=7)


def test_after_a_restart_the_registered_process_can_return_immediately_and_its_twin_is_still_refused() -> None:
    registrations = restarted(registered(FIRST).record(1))
    registrations.check(1, "a", FIRST, heard_at_ns=None, now_ns=1)
    registrations.note(1, FIRST, SINCE_UNIX_NS)
    with pytest.raises(AnotherProcess, match="another process has been registered as a since"):
        registrations.check(1, "a", SECOND, heard_at_ns=1, now_ns=2)


def test_after_a_restart_others_do_not_wait_for_a_process_that_had_left() -> None:
    registrations = registered(FIRST)
    registrations.note_attended(1, False)
    restarted(registrations.record(1)).check(1, "a", SECOND, heard_at_ns=None, now_ns=1)
    registrations.note(1, FIRST, SINCE_UNIX_NS)  # it has returned
    with pytest.raises(ReturnAwaited):
        restarted(registrations.record(1)).check(1, "a", SECOND, heard_at_ns=None, now_ns=1)


def test_after_a_restart_others_do_not_wait_for_a_process_that_returned_and_left_or_hangs() -> None:
    registrations = restarted(registered(FIRST).record(1), began_at_ns=9)
    registrations.check(1, "a", SECOND, heard_at_ns=1, now_ns=2 + ATTENDED_NS)
    registrations.note(1, FIRST, SINCE_UNIX_NS)
    registrations.check(1, "a", SECOND, heard_at_ns=None, now_ns=9)


def test_after_a_restart_a_replaced_process_is_refused_and_a_replacing_one_need_not_wait() -> None:
    registrations = restarted(registered(FIRST, SECOND).record(1))
    with pytest.raises(AnotherProcess, match="this process was replaced"):
        registrations.check(1, "a", FIRST, heard_at_ns=None, now_ns=9 * ATTENDED_NS)
    registrations.check(1, "a", THIRD, heard_at_ns=None, now_ns=1, is_replacing=True)


def test_a_process_whose_reports_wait_while_the_server_is_paused_is_not_replaced() -> None:
    resumed_at_ns = 100 * ATTENDED_NS
    with pytest.raises(AnotherProcess):
        registered(FIRST).check(1, "a", SECOND, heard_at_ns=5, now_ns=resumed_at_ns + 1, resumed_at_ns=resumed_at_ns)
    late_ns = resumed_at_ns + ATTENDED_NS + 1
    registered(FIRST).check(1, "a", SECOND, heard_at_ns=5, now_ns=late_ns, resumed_at_ns=resumed_at_ns)
