"""The HTTP application: routes, the key, every error in OpenAI's shape. Knows nothing of Ray."""

from __future__ import annotations

import hmac
from typing import Annotated, Any, Protocol

from fastapi import Depends, FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from ray_app.chat import ChatModel, TokenSource, begin, complete, stream
from ray_app.engine_client import EngineUnavailableError
from ray_app.openai_schema import (
    ChatCompletionRequest,
    ErrorBody,
    ErrorDetail,
    ModelCard,
    ModelList,
)
from ray_app.supervisor import Status

RETRY_AFTER_SECONDS = 5


class Backend(Protocol):
    """What the routes need of the supervisor."""

    @property
    def status(self) -> Status:
        """Whether the engine can serve."""
        ...

    @property
    def model(self) -> ChatModel:
        """The model. Raises EngineUnavailableError before it is known."""
        ...

    @property
    def source(self) -> TokenSource:
        """Where tokens come from. Raises EngineUnavailableError while the engine does not run."""
        ...


def build_app(backend: Backend, api_key: str | None) -> FastAPI:
    """The application with its routes; ``/v1`` needs the key if there is one."""
    app = FastAPI(title="switchsteer", docs_url=None, redoc_url=None)
    guarded = [Depends(_key_check(api_key))] if api_key is not None else []

    @app.get("/health")
    async def health() -> Response:
        status = backend.status
        code = 200 if status.state == "ready" else 503
        return JSONResponse({"status": status.state, "detail": status.detail}, code)

    @app.get("/v1/models", dependencies=guarded)
    async def models() -> ModelList:
        model = backend.model
        card = ModelCard(id=model.name, created=model.created, max_model_len=model.max_model_len)
        return ModelList(data=[card])

    @app.post("/v1/chat/completions", dependencies=guarded)
    async def chat_completions(body: ChatCompletionRequest) -> Response:
        return await _chat(body, backend)

    _install_error_handlers(app)
    return app


async def _chat(body: ChatCompletionRequest, backend: Backend) -> Response:
    model = backend.model
    if body.model is not None and body.model != model.name:
        message = f"model {body.model!r} is not served here; served is {model.name!r}"
        return _error(404, message, param="model", code="model_not_found")
    try:
        answer = await begin(body, model, backend.source)
    except ValueError as error:
        return _error(400, str(error), param="messages")
    headers = {"X-Request-Id": answer.id}
    if not body.stream:
        completion = await complete(answer)
        return JSONResponse(completion.model_dump(mode="json"), headers=headers)
    include_usage = body.stream_options is not None and body.stream_options.include_usage
    events = stream(answer, include_usage=include_usage)
    headers["Cache-Control"] = "no-cache"
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _key_check(api_key: str) -> Any:
    """A dependency that compares in constant time, so that the key cannot be guessed by timing."""
    expected = f"Bearer {api_key}".encode()

    def check(authorization: Annotated[str, Header()] = "") -> None:
        if not hmac.compare_digest(authorization.encode(), expected):
            raise HTTPException(401, "a valid key is needed: Authorization: Bearer KEY")

    return check


def _install_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        message, param = _describe(error.errors()[0])
        return _error(400, message, param=param)

    @app.exception_handler(HTTPException)
    async def http_error(_request: Request, error: HTTPException) -> Response:
        return _error(error.status_code, str(error.detail))

    @app.exception_handler(EngineUnavailableError)
    async def unavailable(_request: Request, error: EngineUnavailableError) -> Response:
        return _error(503, str(error), headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


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
        return message, where or message.split()[0]
    return (f"{where}: {error['msg']}" if where else str(error["msg"])), where


_ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 503: "service_unavailable"}


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
