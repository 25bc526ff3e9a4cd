"""Which of several admin servers is called: each in turn, or the active that a standby names, with pauses per round."""

from __future__ import annotations

import grpc
import pytest

from tandemfeed.transport.calls.admin_servers import ACTIVE_SERVER_KEY, AdminServers, ask_active

ADDRESSES = "a:1,b:2,c:3"


class Failure(grpc.RpcError):
    """The error that grpc raises for a failed call."""

    def __init__(self, code: grpc.StatusCode, active: str = "") -> None:
        super().__init__()
        self._code, self._active = code, active

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "refused"

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((ACTIVE_SERVER_KEY, self._active),) if self._active else ()


def standby(active: str = "") -> Failure:
    return Failure(grpc.StatusCode.UNAVAILABLE, active)


def test_servers_are_called_in_turn_and_a_server_that_answered_is_called_first() -> None:
    servers = AdminServers(ADDRESSES)
    assert servers.current == "a:1"
    assert servers.move_on("a:1", standby()) == 0
    assert servers.current == "b:2"
    servers.answered("b:2")
    assert servers.current == "b:2"
    assert servers.move_on("b:2") == 0
    assert servers.current == "a:1"


def test_a_standby_can_only_name_a_configured_address_as_active() -> None:
    servers = AdminServers(ADDRESSES)
    servers.move_on("a:1", standby("c:3"))
    assert servers.current == "c:3"
    servers.answered("c:3")
    servers.move_on("c:3", standby("stranger:9"))
    assert servers.current == "a:1"


def test_two_servers_that_name_each_other_do_not_cause_a_loop() -> None:
    servers = AdminServers(ADDRESSES)
    asked = []
    for _ in range(3):
        asked.append(servers.current)
        pause_s = servers.move_on(servers.current, standby("a:1" if servers.current == "b:2" else "b:2"))
    assert sorted(asked) == ["a:1", "b:2", "c:3"]
    assert pause_s > 0


def test_the_pause_grows_each_round_up_to_its_limit_and_an_answer_resets_it() -> None:
    servers = AdminServers("a:1", pause_s=1, pause_max_s=4)
    for longest_s in (1, 2, 4, 4):
        assert longest_s / 2 <= servers.move_on("a:1", standby()) <= longest_s
    servers.answered("a:1")
    assert servers.move_on("a:1", standby()) <= 1


def test_a_call_finds_the_active_server_and_a_refusal_ends_it() -> None:
    servers = AdminServers(ADDRESSES)
    asked = []

    def ask(address: str, timeout_s: float) -> str:
        asked.append(address)
        assert timeout_s > 0
        if address != "c:3":
            raise standby("c:3" if len(asked) > 3 else "")
        return address

    assert ask_active(servers, ask, 10) == "c:3"
    assert asked == ["a:1", "b:2", "c:3"]
    assert ask_active(servers, ask, 10) == "c:3"
    assert len(asked) == 4

    def refuse(_address: str, _timeout_s: float) -> str:
        raise Failure(grpc.StatusCode.PERMISSION_DENIED)

    with pytest.raises(Failure) as refused:
        ask_active(servers, refuse, 10)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_a_call_that_no_server_answers_ends_with_the_last_failure_after_its_time_out() -> None:
    asked = []

    def ask(address: str, _timeout_s: float) -> str:
        asked.append(address)
        raise standby()

    with pytest.raises(Failure):
        ask_active(AdminServers(ADDRESSES), ask, 0.5)
    assert len(asked) > 3
    asked.clear()
    with pytest.raises(Failure):
        ask_active(AdminServers("a:1"), ask, 0.5)
    assert asked == ["a:1"], "with one address, the caller pauses between calls itself"
