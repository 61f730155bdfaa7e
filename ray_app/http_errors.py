"""Every error in OpenAI's shape: one sentence, the field it is about, and when to come back."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from ray_app.engine_client import EngineUnavailableError
from ray_app.openai_requests import ChatCompletionRequest, CompletionRequest
from ray_app.openai_responses import ErrorBody, ErrorDetail

RETRY_AFTER_SECONDS = 5


class OverloadedError(RuntimeError):
    """As many requests wait as may; the text says how many."""


class UnknownModelError(Exception):
    """The body names another model."""


def install_error_handlers(app: FastAPI) -> None:
    """Answer every exception of the routes."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        message, param = _describe(error.errors()[0])
        return _error(400, message, param=param)

    @app.exception_handler(ValueError)
    async def refused(_request: Request, error: ValueError) -> Response:
        return _error(400, str(error), param=_field_of(str(error)))

    @app.exception_handler(UnknownModelError)
    async def unknown_model(_request: Request, error: UnknownModelError) -> Response:
        return _error(404, str(error), param="model", code="model_not_found")

    @app.exception_handler(HTTPException)
    async def http_error(_request: Request, error: HTTPException) -> Response:
        return _error(error.status_code, str(error.detail))

    @app.exception_handler(EngineUnavailableError)
    async def unavailable(_request: Request, error: EngineUnavailableError) -> Response:
        return _error(503, str(error), headers={"Retry-After": str(RETRY_AFTER_SECONDS)})

    @app.exception_handler(OverloadedError)
    async def overloaded(_request: Request, error: OverloadedError) -> Response:
        return _error(429, str(error), headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


_FIELDS = frozenset({*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields})


def _field_of(message: str) -> str | None:
    """The field that a sentence of ours begins with."""
    first = message.split()[0].rstrip(":")
    if message.startswith("the prompt"):
        return "prompt"
    return first if first in _FIELDS else None


def _describe(error: dict[str, Any]) -> tuple[str, str | None]:
    """One sentence and the field it is about, from pydantic's first complaint."""
    where = ".".join(str(part) for part in error["loc"][1:]) or None
    if error["type"] == "json_invalid":
        return f"the body is not valid JSON: {error['ctx']['error']}", None
    if where is None and error["type"] in ("model_attributes_type", "missing"):
        return "the body must be a JSON object, sent as Content-Type: application/json", None
    if error["type"] == "extra_forbidden":
        return f"unknown field {where}", where
    if error["type"] == "value_error":
        message = str(error["ctx"]["error"])
        return message, where or message.split()[0].rstrip(":")
    return (f"{where}: {error['msg']}" if where else str(error["msg"])), where


_ERROR_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable",
}


def _error(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = ErrorBody(error=ErrorDetail(message=message, type=kind, param=param, code=code))
    return JSONResponse(body.model_dump(), status, headers=headers)
