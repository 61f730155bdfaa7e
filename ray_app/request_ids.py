"""Every reply carries its request's id: the client's own, or a new one; a log line names it."""

from __future__ import annotations

import logging
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

HEADER = "X-Request-Id"


class RequestIds:
    """ASGI middleware; it touches a reply's head only, so streams pass untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and mark its reply."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get(HEADER) or uuid.uuid4().hex

        async def mark(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
                line = (scope["method"], scope["path"], message["status"])
                logger.info("%s %s %d", *line, extra={"request_id": request_id})
            await send(message)

        await self._app(scope, receive, mark)
