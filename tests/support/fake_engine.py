"""An engine without a model: says the prompt back, one token per step, and remembers its calls."""

from __future__ import annotations

from engine.counters import EngineCounters
from engine.records import Request, StepOutcome, TokenEvent

MAX_PROMPT = 64


class EchoEngine:
    """Answers every request with its own prompt, over and over, until ``max_tokens``."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._running: dict[str, tuple[Request, int]] = {}
        self.fails_at_step: int | None = None
        self._num_steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    @property
    def running(self) -> set[str]:
        """Ids of the requests that get tokens."""
        return set(self._running)

    def add(self, request: Request) -> None:
        if len(request.prompt_ids) > MAX_PROMPT:
            raise ValueError(f"the prompt has {len(request.prompt_ids)} tokens; max {MAX_PROMPT}")
        self._running[request.request_id] = (request, 0)

    def cancel(self, request_id: str) -> None:
        self.calls.append(f"cancel {request_id}")
        self._running.pop(request_id, None)

    def step(self) -> StepOutcome:
        self._num_steps += 1
        if self._num_steps == self.fails_at_step:
            raise RuntimeError("a matrix caught fire")
        return StepOutcome(events=tuple(self._advance(name) for name in list(self._running)))

    def _advance(self, name: str) -> TokenEvent:
        request, done = self._running[name]
        token = request.prompt_ids[done % len(request.prompt_ids)]
        self._running[name] = (request, done + 1)
        is_last = done + 1 == request.max_tokens
        if is_last:
            del self._running[name]
        return TokenEvent(
            request_id=name,
            token_ids=(token,),
            sources=("verifier",),
            finish_reason="length" if is_last else None,
        )

    def idle(self) -> None:
        self.calls.append("idle")

    def stop(self) -> None:
        self.calls.append("stop")

    def reset_counters(self) -> None:
        self.calls.append("reset")

    def counters(self) -> EngineCounters:
        return EngineCounters(num_steps=self._num_steps)
