"""When a client logs in, and what it has between two logins."""

from __future__ import annotations

import pytest

from tandemfeed.client_lib import AdminUnavailable, AuthenticationRefused
from tandemfeed.client_lib.login.session import LIFE_MIN_NS, RENEW_BEFORE_NS, Session
from tandemfeed.transport.calls.server_names import ADMIN_SERVER
from tests.client_lib.toy_cluster import IDENTITY, SECRET, ToyCluster

S = 1_000_000_000


class Scene:
    """A session, and its clock."""

    def __init__(self, cluster: ToyCluster, secret: str = SECRET) -> None:
        self.now_ns, self.cluster = 7 * S, cluster
        address, clock = cluster.admin_rpc.endpoint, lambda: self.now_ns
        self.session = Session(address, cluster.ca_pem, IDENTITY, secret, timeout_s=5, now_ns=clock)

    def logins_at(self, *seconds: float) -> list[int]:
        """How many logins there were after a token was needed at each of these times."""
        found = []
        for second in seconds:
            self.now_ns = 7 * S + int(second * S)
            self.session.ensure_token()
            found.append(self.cluster.admin.logins)
        return found


@pytest.mark.parametrize(
    ("life_s", "due_s"),
    [(3_600, 3_600 - RENEW_BEFORE_NS / S), (100, 50), (20, 10), (1, LIFE_MIN_NS / S / 2)],
)
def test_a_token_is_renewed_a_minute_before_it_expires_or_after_half_of_its_life(
    cluster: ToyCluster, life_s: int, due_s: float
) -> None:
    cluster.token_life_s = life_s
    scene = Scene(cluster)
    assert scene.session.renew_in_s == 0
    assert scene.logins_at(0) == [1]
    assert scene.session.renew_in_s == pytest.approx(due_s)
    assert scene.logins_at(due_s - 0.001) == [1]
    assert scene.session.renew_in_s == pytest.approx(0.001)
    assert scene.logins_at(due_s, due_s + 0.001, 2 * due_s - 0.001, 2 * due_s) == [2, 2, 2, 3]
    scene.now_ns += 10_000 * S
    assert scene.session.renew_in_s == 0


def test_a_refused_token_is_forgotten_once(cluster: ToyCluster) -> None:
    scene = Scene(cluster)
    session = scene.session
    assert session.current_token() == session.bearer(ADMIN_SERVER) == ""
    session.ensure_token()
    first = session.current_token()
    assert session.bearer(ADMIN_SERVER).startswith(first)
    session.forget_token("another")
    assert session.current_token() == first
    session.forget_token(first)
    assert session.current_token() == session.bearer(ADMIN_SERVER) == ""
    assert session.renew_in_s == 0
    session.ensure_token()
    assert cluster.admin.logins == 2


@pytest.mark.parametrize("count", [1, 2])
def test_a_login_that_fails_leaves_the_token_and_is_tried_again(cluster: ToyCluster, count: int) -> None:
    scene = Scene(cluster)
    assert scene.logins_at(0) == [1]
    token, due_s = scene.session.current_token(), scene.session.renew_in_s
    cluster.stop_admin()
    for _ in range(count):
        with pytest.raises(AdminUnavailable, match=f"administration server {cluster.admin_rpc.endpoint}"):
            scene.logins_at(due_s)
        assert scene.session.current_token() == token
        assert scene.session.renew_in_s == 0
    cluster.restart_admin()
    assert scene.logins_at(due_s) == [1]
    assert scene.session.current_token()


@pytest.mark.parametrize("count", [1, 2])
def test_a_refused_login_is_raised_each_time(cluster: ToyCluster, count: int) -> None:
    scene = Scene(cluster, "wrong")
    for _ in range(count):
        with pytest.raises(AuthenticationRefused, match="identity or secret is wrong"):
            scene.session.ensure_token()
    assert scene.session.current_token() == ""
