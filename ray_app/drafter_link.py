"""How the verifier's coordinator and a drafter actor meet: address, token, and a sign of life.

The drafter listens on a port of its own, outside the verifier's process group. Whoever connects
must send the token that came to both ends through Ray; the drafter answers, so a process that is
stopped, whose kernel still accepts connections, does not count as connected.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading

from parallel.link import Link, LinkClosedError, SocketLink
from ray_app.messages import DrafterFound

logger = logging.getLogger(__name__)

HELLO_SECONDS = 5.0
"""How long either end waits for the other's first frame."""
_READY = b"ready"


class DrafterListener:
    """The drafter's end: one verifier at a time, and the next one after it has hung up."""

    def __init__(self, host: str, token: str) -> None:
        self._token = token
        self._listener = socket.create_server((host, 0))

    @property
    def address(self) -> DrafterFound:
        """Where the coordinator must connect."""
        host, port = self._listener.getsockname()[:2]
        return DrafterFound(host=host, port=port, token=self._token)

    def accept(self) -> SocketLink:
        """Wait for the verifier; whoever does not know the token is turned away."""
        while True:
            peer, origin = self._listener.accept()
            link = _open_link(peer)
            if self._knows_token(link):
                return link
            logger.warning("turned away a connection from %s without the token", origin)
            link.close()

    def _knows_token(self, link: SocketLink) -> bool:
        try:
            hello = link.receive(HELLO_SECONDS)
            if hello is None or not hmac.compare_digest(hello, self._token.encode()):
                return False
            link.send(_READY)
        except LinkClosedError:
            return False
        return True

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def connect_drafter(address: DrafterFound) -> SocketLink:
    """The coordinator's end.

    Raises:
        ConnectionError: nobody is there, or whoever is there does not answer.
    """
    try:
        peer = socket.create_connection((address.host, address.port), timeout=HELLO_SECONDS)
    except OSError as error:
        raise ConnectionError(f"no drafter at {address.host}:{address.port}: {error}") from error
    link = _open_link(peer)
    try:
        link.send(address.token.encode())
        answer = link.receive(HELLO_SECONDS)
    except LinkClosedError as error:
        link.close()
        raise ConnectionError("the drafter hung up on the first frame") from error
    if answer != _READY:
        link.close()
        raise ConnectionError(f"the drafter did not answer within {HELLO_SECONDS:.0f} s")
    return link


class DrafterDirectory:
    """Where the current drafter is; the server tells, the coordinator's background thread asks."""

    def __init__(self) -> None:
        self._address: DrafterFound | None = None
        self._changed = threading.Condition()

    def announce(self, address: DrafterFound) -> None:
        """A drafter, the first or a new one, listens here."""
        with self._changed:
            self._address = address
            self._changed.notify_all()

    def connect(self) -> Link:
        """Wait until a drafter was announced and connect to it. Raises ConnectionError."""
        with self._changed:
            while self._address is None:
                self._changed.wait()
            address = self._address
        return connect_drafter(address)


def _open_link(peer: socket.socket) -> SocketLink:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return SocketLink(peer)
