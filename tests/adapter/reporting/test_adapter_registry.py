"""How an adapter registers and attends: which refusals it waits out, which end it, and how it stops."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tandemfeed.adapter.reporting import registry as registry_module
from tandemfeed.adapter.reporting.registry import AnotherProcessRuns
from tandemfeed.runtime.signals import StopSignal
from tandemfeed.transport.calls.token_source import TokenSource
from tandemfeed.v1 import admin_pb2
from tests.adapter.reporting.admin_by_hand import CA, AdminByHand
from tests.adapter.reporting.attending import Attending
from tests.adapter.server_by_hand import WAIT_S

LOGGER = "tandemfeed.adapter.reporting.registry"


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[AdminByHand]:
    made = AdminByHand(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    with StopSignal(handles_signals=False) as made:
        yield made


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(registry_module, "REPLACED_PAUSE_S_MAX", 0.08)
    monkeypatch.setattr(registry_module, "REGISTER_TIMEOUT_S", 600.0)


def adapter_of(admin: AdminByHand, servers: str = "", **options: object) -> Attending:
    tokens = TokenSource(admin.endpoint, CA, "", admin.credential)
    request = admin_pb2.RegisterRequest(feed="equities", adapter="a", public_key=bytes(32), replace=True)
    return Attending(servers or admin.endpoint, CA, tokens, request, **options)  # type: ignore[arg-type]


@contextmanager
def closing_by_stop(server: AdminByHand) -> Iterator[AdminByHand]:
    try:
        yield server
    finally:
        server.stop()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.message for entry in caplog.records if entry.levelno == logging.WARNING and entry.name == LOGGER]


def test_a_registration_is_repeated_while_no_server_answers_and_the_log_warns_once(
    admin: AdminByHand, stop: StopSignal, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = adapter_of(admin)
    admin.refuse("Register", grpc.StatusCode.UNAVAILABLE, 3)
    reply = adapter.registry.register(stop)
    assert reply is not None
    assert reply.self.incarnation == 7
    assert admin.log.count("Register") == 4
    assert warnings(caplog) == ["the admin server does not answer; retrying"]
    assert adapter.registry.server == admin.endpoint


def test_a_registration_that_is_refused_for_good_is_not_repeated(admin: AdminByHand, stop: StopSignal) -> None:
    admin.refuse("Register", grpc.StatusCode.PERMISSION_DENIED)
    with pytest.raises(grpc.RpcError) as refused:
        adapter_of(admin).registry.register(stop)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert admin.log.count("Register") == 1


def test_a_registration_waits_some_time_for_a_former_process_to_disappear(
    admin: AdminByHand, stop: StopSignal, caplog: pytest.LogCaptureFixture
) -> None:
    admin.refuse("Register", grpc.StatusCode.ALREADY_EXISTS, 4)
    assert adapter_of(admin).registry.register(stop) is not None
    assert warnings(caplog) == ["refused; retrying, in case that process has just ended"]


def test_a_registration_gives_up_if_another_process_stays(admin: AdminByHand, stop: StopSignal) -> None:
    admin.refuse("Register", grpc.StatusCode.ALREADY_EXISTS, 100)
    with pytest.raises(AnotherProcessRuns, match="refused by the test"):
        adapter_of(admin).registry.register(stop)
    assert admin.log.count("Register") == 5  # after pauses of 10, 20, 40 and 80 ms


def test_a_stop_ends_a_registration_that_no_server_answers(admin: AdminByHand, stop: StopSignal) -> None:
    admin.is_silent = True
    answers: list[object] = []
    registering = threading.Thread(target=lambda: answers.append(adapter_of(admin).registry.register(stop)))
    registering.start()
    admin.wait_for_count("Register", 1)
    stop.set()
    registering.join(WAIT_S)
    assert answers == [None]
    admin.answer()


def test_a_stop_before_the_registration_registers_nothing(admin: AdminByHand, stop: StopSignal) -> None:
    stop.set()
    assert adapter_of(admin).registry.register(stop) is None
    assert admin.log == []


def test_only_the_first_registration_replaces_another_process(admin: AdminByHand, stop: StopSignal) -> None:
    adapter = adapter_of(admin)
    assert adapter.registry.register(stop) is not None
    adapter.registry.start()
    admin.wait_for_count("Attend", 1)
    adapter.turn(WAIT_S)
    admin.wait_for_streams(1)
    admin.end_streams()
    admin.wait_for_count("Attend", 2)
    assert [request.replace for request in admin.registrations] == [True, False]
    assert [request.resume_incarnation for request in admin.registrations] == [0, 7]  # the same start returns
    assert admin.registrations[0].process_nonce == admin.registrations[1].process_nonce
    adapter.registry.stop()


def test_an_adapter_that_another_process_replaced_learns_why_and_registers_no_more(
    admin: AdminByHand, stop: StopSignal
) -> None:
    replaced: list[str] = []
    adapter = adapter_of(admin, on_replaced=replaced.append)
    assert adapter.registry.register(stop) is not None
    adapter.registry.start()
    admin.wait_for_count("Attend", 1)
    adapter.turn(WAIT_S)
    admin.wait_for_streams(1)
    admin.refuse("Register", grpc.StatusCode.ALREADY_EXISTS)
    admin.end_streams()
    assert adapter.registry._thread is not None
    adapter.registry._thread.join(WAIT_S)
    assert (replaced, admin.log.count("Register")) == (["refused by the test"], 2)


def test_a_stop_while_it_registers_again_ends_the_thread_without_a_failure(
    admin: AdminByHand, stop: StopSignal
) -> None:
    failed: list[str] = []
    adapter = adapter_of(admin, on_failure=lambda name, failure: failed.append(f"{name}: {failure!r}"))
    assert adapter.registry.register(stop) is not None
    adapter.registry.start()
    adapter.turn(WAIT_S)
    admin.wait_for_streams(1)
    admin.is_silent = True
    admin.end_streams()
    admin.wait_for_count("Register", 2)
    adapter.registry._stopped.set()  # as `stop`, which also closes the channel that is there at the time
    assert adapter.registry._thread is not None
    adapter.registry._thread.join(WAIT_S)
    assert not adapter.registry._thread.is_alive()
    assert failed == []
    admin.answer()


def test_an_unexpected_exception_of_the_thread_is_passed_on(admin: AdminByHand, stop: StopSignal) -> None:
    ended = threading.Event()
    failed: list[str] = []

    def on_failure(name: str, failure: BaseException) -> None:
        failed.append(f"{name}: {failure!r}")
        ended.set()

    def broken(_order: admin_pb2.AdapterOrder) -> None:
        raise KeyError("broken")

    adapter = adapter_of(admin, on_failure=on_failure, on_order=broken)
    assert adapter.registry.register(stop) is not None
    adapter.registry.start()
    adapter.turn(WAIT_S)
    assert ended.wait(WAIT_S)
    assert failed == ["registry: KeyError('broken')"]


def test_of_several_servers_one_that_does_not_answer_is_passed_over_and_the_one_that_does_is_asked_first_later(
    admin: AdminByHand, stop: StopSignal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "TRY_TIMEOUT_S", 0.3)
    (tmp_path / "silent").mkdir()
    with closing_by_stop(AdminByHand(tmp_path / "silent")) as silent:
        silent.is_silent, silent._tokens = True, admin._tokens
        adapter = adapter_of(admin, f"{silent.endpoint},{admin.endpoint}")
        pauses, move_on = list[float](), adapter.registry._servers.move_on
        monkeypatch.setattr(
            adapter.registry._servers, "move_on", lambda *given: pauses.append(move_on(*given)) or pauses[-1]
        )
        assert adapter.registry.server == silent.endpoint
        assert adapter.registry.register(stop) is not None
        assert adapter.registry.server == admin.endpoint
        adapter.registry.start()
        adapter.turn(WAIT_S)
        admin.wait_for_streams(1)
        admin.refuse("Register", grpc.StatusCode.UNAVAILABLE, 1)
        admin.end_streams()
        admin.wait_for_count("Attend", 2)
        assert admin.log.count("Register") == 3
        assert pauses[:2] == [0.0, 0.0]  # a server that has answered begins a new round
        adapter.registry.stop()
        silent.answer()


def test_a_refused_token_is_renewed_without_a_pause_and_without_a_warning(
    admin: AdminByHand, stop: StopSignal, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = adapter_of(admin)
    assert adapter.registry.register(stop) is not None
    adapter.registry.start()
    adapter.turn(WAIT_S)
    admin.wait_for_streams(1)
    admin.refuse("Register", grpc.StatusCode.UNAUTHENTICATED)
    admin.end_streams()
    admin.wait_for_count("Attend", 2)
    assert warnings(caplog) == ["lost the admin server; retrying"]  # of the stream that ended
    adapter.registry.stop()
