"""The coordinator's end of the private socket: blocks when idle, never waits when there is work.

One server connects. It proves itself with a random token that came to both ends through Ray, so
another process on the machine can neither read prompts nor inject requests.
"""

from __future__ import annotations

import hmac
import logging
import select
import socket
import time
from dataclasses import dataclass

from ray_app.messages import LENGTH_BYTES, Hello, Message, decode, encode, frame_length

logger = logging.getLogger(__name__)

_HELLO_SECONDS = 5.0
_SEND_SECONDS = 30.0
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAddress:
    """Where the coordinator listens."""

    host: str
    port: int


class LinkClosedError(Exception):
    """The server closed the connection."""


class CoordinatorLink:
    """Framed messages to and from the one server."""

    def __init__(self, host: str, token: str) -> None:
        self._token = token
        self._listener = socket.create_server((host, 0))
        self._peer: socket.socket | None = None
        self._buffer = bytearray()

    @property
    def address(self) -> LinkAddress:
        """Where the server must connect."""
        host, port = self._listener.getsockname()[:2]
        return LinkAddress(host=host, port=port)

    def accept(self, timeout: float) -> None:
        """Wait for the server; whoever does not know the token is turned away.

        Raises:
            TimeoutError: no server came.
        """
        deadline = time.monotonic() + timeout
        while self._peer is None:
            self._listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                peer, origin = self._listener.accept()
            except TimeoutError:
                raise TimeoutError(f"no server connected within {timeout:.0f} s") from None
            if self._is_server(peer):
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer.settimeout(_SEND_SECONDS)
                self._peer = peer
            else:
                logger.warning("turned away a connection from %s without the token", origin)
                peer.close()
        self._listener.close()

    def _is_server(self, peer: socket.socket) -> bool:
        peer.settimeout(_HELLO_SECONDS)
        try:
            length = frame_length(_read_exactly(peer, LENGTH_BYTES))
            hello = decode(_read_exactly(peer, length)) if length < _CHUNK_BYTES else None
        except (OSError, ValueError, LinkClosedError):
            return False
        return isinstance(hello, Hello) and hmac.compare_digest(hello.token, self._token)

    def send(self, message: Message) -> None:
        """Send one frame. Raises LinkClosedError if the server is gone or does not read."""
        assert self._peer is not None, "accept first"
        try:
            self._peer.sendall(encode(message))
        except OSError as error:
            raise LinkClosedError(str(error)) from error

    def receive(self, timeout: float) -> list[Message]:
        """All messages that are here; waits up to ``timeout`` seconds when there is none.

        Raises:
            LinkClosedError: the server closed the connection.
        """
        assert self._peer is not None, "accept first"
        while select.select([self._peer], [], [], timeout)[0]:
            try:
                chunk = self._peer.recv(_CHUNK_BYTES)
            except OSError as error:
                raise LinkClosedError(str(error)) from error
            if not chunk:
                raise LinkClosedError("the server closed the connection")
            self._buffer += chunk
            timeout = 0.0
        return self._take_messages()

    def _take_messages(self) -> list[Message]:
        messages = []
        while len(self._buffer) >= LENGTH_BYTES:
            end = LENGTH_BYTES + frame_length(bytes(self._buffer[:LENGTH_BYTES]))
            if len(self._buffer) < end:
                break
            messages.append(decode(bytes(self._buffer[LENGTH_BYTES:end])))
            del self._buffer[:end]
        return messages

    def close(self) -> None:
        """Close both sockets."""
        self._listener.close()
        if self._peer is not None:
            self._peer.close()


def _read_exactly(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = peer.recv(count - len(data))
        if not chunk:
            raise LinkClosedError("closed before the first message")
        data += chunk
    return data
