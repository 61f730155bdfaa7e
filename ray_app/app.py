"""The HTTP application: routes, the key, limits, every error in OpenAI's shape. Knows no Ray."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.responses import StreamingResponse as Stream
from starlette.exceptions import HTTPException

from ray_app.body_limit import BodyLimit
from ray_app.chat import begin_chat, chat_prompt, complete_chat, stream_chat
from ray_app.completions import begin_completions, complete, stream_completions
from ray_app.config import ServerConfig
from ray_app.generation import TokenSource
from ray_app.http_errors import UnknownModelError, install_error_handlers
from ray_app.openai_requests import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from ray_app.openai_responses import (
    ModelCard,
    ModelList,
    Text,
    Tokens,
)
from ray_app.request_ids import RequestIds
from ray_app.request_options import ServedModel
from ray_app.sse import whole_stream
from ray_app.supervisor import Status

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_LOOK_SECONDS = 0.1
"""Pause between two looks at whether a client is still there."""
PAGE = Path(__file__).parent / "page.html"


class Backend(Protocol):
    """What the routes need of the ingress."""

    @property
    def model(self) -> ServedModel:
        """The model. Raises EngineUnavailableError before it is known."""
        ...

    @property
    def source(self) -> TokenSource:
        """Where tokens come from. Raises EngineUnavailableError when the server stops."""
        ...

    async def status(self) -> Status:
        """Whether the engine can serve."""
        ...

    async def metrics_text(self) -> str:
        """The page that Prometheus scrapes."""
        ...


def build_app(backend: Backend, config: ServerConfig) -> FastAPI:
    """The application with its routes; all but health, version, metrics and page need the key."""
    app = FastAPI(title="switchsteer", docs_url=None, redoc_url=None)
    app.add_middleware(BodyLimit, max_bytes=config.max_body_bytes)
    app.add_middleware(RequestIds)
    guarded = [] if config.api_key is None else [Depends(_key_check(config.api_key))]
    _install_open_routes(app, backend)
    _install_model_routes(app, backend, guarded)

    @app.post("/v1/chat/completions", dependencies=guarded)
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        _check_model(body.model, backend.model)
        chat = await begin_chat(body, backend.model, backend.source)
        if body.stream:
            return _stream(stream_chat(chat))
        return _reply(await _unless_gone(request, complete_chat(chat)))

    @app.post("/v1/completions", dependencies=guarded)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        _check_model(body.model, backend.model)
        begun = await begin_completions(body, backend.model, backend.source)
        if body.stream:
            return _stream(stream_completions(begun))
        return _reply(await _unless_gone(request, complete(begun)))

    install_error_handlers(app)
    return app


def _install_open_routes(app: FastAPI, backend: Backend) -> None:
    @app.get("/health")
    async def health() -> Response:
        status = await backend.status()
        code = 200 if status.state == "ready" else 503
        return JSONResponse({"status": status.state, "detail": status.detail}, code)

    @app.get("/version")
    async def server_version() -> Response:
        return JSONResponse({"version": version("switchsteer")})

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(await backend.metrics_text())

    @app.get("/")
    async def page() -> Response:
        return HTMLResponse(PAGE.read_text(encoding="utf-8"))


def _install_model_routes(app: FastAPI, backend: Backend, guarded: list[Any]) -> None:
    @app.get("/v1/models", dependencies=guarded)
    async def models() -> ModelList:
        model = backend.model
        card = ModelCard(id=model.name, created=model.created, max_model_len=model.max_model_len)
        return ModelList(data=[card])

    @app.post("/tokenize", dependencies=guarded)
    async def tokenize(body: TokenizeRequest) -> Response:
        model = backend.model
        _check_model(body.model, model)
        if body.messages is not None:
            ids = chat_prompt(body.messages, model.tokenizer, None)
        else:
            assert body.prompt is not None, "the body was checked"
            encode = model.tokenizer.encode
            ids = (encode if body.add_special_tokens else model.tokenizer.encode_word)(body.prompt)
        texts = None
        if body.return_token_strs:
            texts = [model.tokenizer.decode([i], skip_special_tokens=False) for i in ids]
        limit = model.max_model_len
        return _reply(Tokens(count=len(ids), max_model_len=limit, tokens=ids, token_strs=texts))

    @app.post("/detokenize", dependencies=guarded)
    async def detokenize(body: DetokenizeRequest) -> Response:
        model = backend.model
        _check_model(body.model, model)
        known = range(model.tokenizer.vocab_size)
        unknown = next((token for token in body.tokens if token not in known), None)
        if unknown is not None:
            raise ValueError(f"tokens has id {unknown}; this model knows ids 0 to {known.stop - 1}")
        return _reply(Text(prompt=model.tokenizer.decode(body.tokens, skip_special_tokens=False)))


def _reply(body: Any) -> Response:
    return JSONResponse(body.model_dump(mode="json", exclude_none=False))


def _stream(events: Any) -> Response:
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return Stream(whole_stream(events), media_type="text/event-stream", headers=headers)


async def _unless_gone(request: Request, answer: Awaitable[_Answer]) -> _Answer:
    """The answer, unless its client hangs up first: then it is cancelled and its KV is freed."""
    work = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_wait_until_gone(request))
    try:
        await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise HTTPException(499, "the client has hung up")
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _wait_until_gone(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(_LOOK_SECONDS)


def _check_model(wanted: str | None, model: ServedModel) -> None:
    if wanted is not None and wanted != model.name:
        raise UnknownModelError(f"model {wanted!r} is not served here; served is {model.name!r}")


def _key_check(api_key: str) -> Any:
    """A dependency that compares in constant time, so that the key cannot be guessed by timing."""
    expected = f"Bearer {api_key}".encode()

    def check(authorization: Annotated[str, Header()] = "") -> None:
        if not hmac.compare_digest(authorization.encode(), expected):
            raise HTTPException(401, "a valid key is needed: Authorization: Bearer KEY")

    return check
