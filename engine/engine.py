"""The speculative engine: one loop, the same on every rank.

``choose -> draft -> verify -> commit -> record``. The coordinator (tensor-parallel rank 0 of the
last stage) chooses, drafts and judges; its verdict is broadcast once per step, and every rank
commits and runs exactly what it says.
"""

from __future__ import annotations

import time
from itertools import count

from engine.control import ControlChannel, Verdict
from engine.counters import EngineCounters
from engine.drafting import Drafters
from engine.records import GenerationResult, Request, StepOutcome, StepRecord, TokenEvent
from engine.runner import ModelRunner
from engine.sampling import GREEDY, SamplingParams
from engine.scheduler import Scheduler
from engine.speculation import SpeculationConfig
from engine.timing import sibling_rows
from engine.tokenizer import Tokenizer


class SpeculativeEngine:
    """One rank's engine. Requests enter on the coordinator; other ranks call :meth:`follow`."""

    def __init__(
        self,
        *,
        runner: ModelRunner,
        control: ControlChannel,
        scheduler: Scheduler | None,
        tokenizer: Tokenizer,
        drafters: Drafters,
    ) -> None:
        self._runner, self._control, self._scheduler = runner, control, scheduler
        self._drafters = drafters
        self._request_ids = count()
        self._counters = EngineCounters()
        self.tokenizer = tokenizer

    @property
    def scheduler(self) -> Scheduler:
        """The coordinator's scheduler."""
        assert self._scheduler is not None, "only the coordinator schedules"
        return self._scheduler

    @property
    def is_coordinator(self) -> bool:
        """Whether requests enter here."""
        return self._scheduler is not None

    @property
    def has_work(self) -> bool:
        """Whether any request waits or runs."""
        return self.scheduler.has_work

    def add(self, request: Request) -> None:
        """Queue a request; it joins at the next step. Raises ValueError if it cannot be served."""
        self.scheduler.add(request)

    def cancel(self, request_id: str) -> None:
        """Drop a request and free its KV slot."""
        self.scheduler.cancel(request_id)

    def use_policy(self, speculation: SpeculationConfig) -> None:
        """Draft with another method from now on; raises ValueError if a part is missing."""
        self.scheduler.use(self._drafters.drafting(speculation))

    def step(self) -> StepOutcome:
        """Coordinator: one choose-draft-verify-commit-record cycle over all running requests."""
        verdict = self.scheduler.next_verdict()  # choose, draft
        self._control.send(verdict)
        started = time.perf_counter()
        result = self._runner.execute(verdict)  # commit the last step, verify this one
        assert result is not None, "the coordinator is on the last stage"
        verify_ms = (time.perf_counter() - started) * 1e3
        outcome = self.scheduler.conclude(verdict, result, verify_ms)  # accept
        self._counters.observe(
            outcome.records, plain_seconds=self.scheduler.plain_seconds
        )  # record
        return outcome

    def rehearse(self, num_rows: int, *, context: int) -> None:
        """Coordinator, alone and idle: a pass of so many rows behind ``context`` tokens.

        For timing; what the cache holds is not touched by rows that are never committed.
        """
        assert not self.has_work, "a pass of its own would disturb running requests"
        self._runner.run(sibling_rows(num_rows, self._runner.kv, context=context))

    def reset_counters(self) -> None:
        """Coordinator: count from here."""
        self._counters = EngineCounters()
        self.scheduler.admission.reset_counters()

    def counters(self) -> EngineCounters:
        """Coordinator: what happened since the start, and the load now."""
        admission = self.scheduler.admission
        found = self._counters.snapshot()
        found.link = self.scheduler.link_counts()
        found.num_preemptions = admission.num_preemptions
        found.prompt_tokens = admission.prompt_tokens
        found.prefix_cache_queries = admission.prefix_counters.queries
        found.prefix_cache_hits = admission.prefix_counters.hits
        found.num_requests_running = len(admission.running)
        found.num_requests_waiting = admission.num_waiting
        found.kv_cache_usage_perc = admission.kv_usage
        return found

    def follow(self) -> None:
        """Every other rank: execute the coordinator's verdicts until it stops."""
        while not (verdict := self._control.receive()).stop:
            if verdict.rows:
                self._runner.execute(verdict)

    def idle(self) -> None:
        """Coordinator: tell waiting ranks that nothing happens, before their receive times out."""
        self._control.send(Verdict(step=0))

    def stop(self) -> None:
        """Coordinator: end every other rank's :meth:`follow`."""
        self._control.send(Verdict(step=0, stop=True))

    def generate(
        self,
        prompt_ids: tuple[int, ...],
        *,
        max_tokens: int,
        ignore_eos: bool = False,
        sampling: SamplingParams = GREEDY,
    ) -> GenerationResult:
        """Answer one prompt alone; prefill and decoding are timed apart."""
        request_id = f"generate-{next(self._request_ids)}"
        self.add(
            Request(
                request_id=request_id,
                prompt_ids=prompt_ids,
                max_tokens=max_tokens,
                ignore_eos=ignore_eos,
                sampling=sampling,
            )
        )
        clock = _Clock()
        events: list[TokenEvent] = []
        records: list[StepRecord] = []
        while self.has_work:
            outcome = self.step()
            events += outcome.events
            records += outcome.records
            if outcome.events and len(events) == len(outcome.events):
                clock.end_prefill()
        return _result(events, records, clock)


class _Clock:
    """Wall and CPU seconds of the two phases of a generation."""

    def __init__(self) -> None:
        self._start = self._first = (time.perf_counter(), time.process_time())

    def end_prefill(self) -> None:
        self._first = (time.perf_counter(), time.process_time())

    def seconds(self) -> tuple[float, float, float, float]:
        """Prefill wall, decode wall, prefill CPU, decode CPU."""
        (wall, cpu), (wall_first, cpu_first) = self._start, self._first
        return (
            wall_first - wall,
            time.perf_counter() - wall_first,
            cpu_first - cpu,
            time.process_time() - cpu_first,
        )


def _result(events: list[TokenEvent], records: list[StepRecord], clock: _Clock) -> GenerationResult:
    prefill, decode, prefill_cpu, decode_cpu = clock.seconds()
    finish_reason = events[-1].finish_reason
    assert finish_reason is not None, "a generation ends with a reason"
    return GenerationResult(
        token_ids=tuple(token for event in events for token in event.token_ids),
        sources=tuple(source for event in events for source in event.sources),
        finish_reason=finish_reason,
        records=tuple(records),
        prefill_seconds=prefill,
        decode_seconds=decode,
        prefill_cpu_seconds=prefill_cpu,
        decode_cpu_seconds=decode_cpu,
    )
