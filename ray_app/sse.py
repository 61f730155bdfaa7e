"""Server-sent events: chunks as OpenAI writes them, comments that keep a silent stream open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from pydantic import BaseModel

from ray_app.engine_client import EngineUnavailableError
from ray_app.openai_responses import ErrorBody, ErrorDetail

END_OF_STREAM = "data: [DONE]\n\n"
KEEP_ALIVE = ": still here\n\n"
"""A comment: clients ignore it, proxies see life."""
KEEP_ALIVE_SECONDS = 5.0

_ALWAYS_SHOWN = ("finish_reason", "logprobs")
"""Parts of a choice that OpenAI shows when they are null, too."""


def data(chunk: BaseModel) -> str:
    """One event; what a chunk does not change is left out."""
    body = chunk.model_dump(mode="json", exclude_none=True)
    for choice in body["choices"]:
        for name in _ALWAYS_SHOWN:
            choice.setdefault(name, None)
    return f"data: {json.dumps(body, separators=(',', ':'), ensure_ascii=False)}\n\n"


async def whole_stream(events: AsyncGenerator[str]) -> AsyncGenerator[str]:
    """The events, comments while nothing comes, and an error as the last event if it ends badly.

    Then ``[DONE]`` does not follow, so that nobody takes the torso for the whole.
    """
    async with aclosing(events):
        iterator: AsyncIterator[str] = aiter(events)
        try:
            while True:
                waiting = asyncio.ensure_future(anext(iterator))
                try:
                    while not (await asyncio.wait([waiting], timeout=KEEP_ALIVE_SECONDS))[0]:
                        yield KEEP_ALIVE
                    yield waiting.result()
                finally:
                    waiting.cancel()
        except StopAsyncIteration:
            return
        except EngineUnavailableError as error:
            detail = ErrorDetail(message=str(error), type="service_unavailable")
            yield f"data: {ErrorBody(error=detail).model_dump_json()}\n\n"
