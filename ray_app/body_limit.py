"""Bodies that are too large are refused before they are read into memory."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ray_app.openai_responses import ErrorBody, ErrorDetail


class BodyLimit:
    """ASGI middleware: 413 for a body of more than ``max_bytes``, announced or not."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max_bytes = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, once its body is here and small enough."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await self._read(receive, Headers(scope=scope))
        if body is None:
            await self._refuse(scope, receive, send)
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, replay, send)

    async def _read(self, receive: Receive, headers: Headers) -> bytes | None:
        """The whole body, or None as soon as it is known to be too large."""
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            return None
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                return None
            if not message.get("more_body", False):
                return bytes(body)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        detail = ErrorDetail(
            message=f"the body is larger than the {self._max_bytes} bytes that are allowed",
            type="invalid_request_error",
        )
        body: dict[str, Any] = ErrorBody(error=detail).model_dump()
        await JSONResponse(body, 413)(scope, receive, send)
