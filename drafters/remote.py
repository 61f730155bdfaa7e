"""A neural drafter behind a link: asked with a deadline, replaced in the background when it dies.

The verifier never depends on it. A step that asks for n drafts waits at most n times ``max(2 ms,
1.5 x EWMA)`` of the times that a draft took; a sequence without a fitting reply by then goes on
plain, and the reply, when it comes, is dropped by its tag. A dead drafter is replaced under a new
epoch and is sent all context again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

from drafters.messages import Forget, Question, Reply, Tag, decode, encode
from engine.records import Draft, SequenceView
from parallel.link import Link, LinkClosedError

logger = logging.getLogger(__name__)

MIN_DEADLINE_SECONDS = 0.002
SILENT_MISSES = 8
"""Questions in a row without any reply after which a step no longer waits, until one comes."""
_DEADLINE_FACTOR = 1.5
_EWMA_WEIGHT = 0.2
_RETRY_SECONDS = 0.5
_CLOSE_SECONDS = 0.5
"""How long closing waits for a connection that is being made, to hang up on it too."""
_KEPT_QUESTIONS = 64
"""Unanswered questions whose send times are remembered, so that late replies still teach."""


@dataclass(slots=True)
class LinkCounters:
    """What happened to questions and frames; each is one Prometheus counter later."""

    asked: int = 0
    answered: int = 0
    """Fitting replies in time."""
    missed: int = 0
    """Steps that went on without a reply."""
    stale: int = 0
    """Replies dropped because a tag did not fit."""
    malformed: int = 0
    """Frames that were no reply, damaged ones included."""
    out_of_vocabulary: int = 0
    unavailable: int = 0
    """Steps while there was no drafter."""
    replaced: int = 0
    """Drafters connected after the first."""


@dataclass(slots=True)
class _Known:
    """What the drafter has been told about one request."""

    number: int
    num_tokens: int = 0


@dataclass(slots=True)
class RoundTrip:
    """How long replies take: the deadline, and what it is learned from.

    A drafter answers one question after the other, so the time of a reply counts from the reply
    before it, if that came after the question.
    """

    seconds: float = 0.02
    """Moving average; starts at a guess that lets a first reply through."""
    sent: dict[tuple[int, int], float] = field(default_factory=dict)
    _last_reply: float = 0.0

    @property
    def deadline_seconds(self) -> float:
        """How long a step waits."""
        return max(MIN_DEADLINE_SECONDS, _DEADLINE_FACTOR * self.seconds)

    def asked(self, tag: Tag) -> None:
        """Note the time of a question."""
        self.sent[tag.request, tag.step] = time.monotonic()
        while len(self.sent) > _KEPT_QUESTIONS:
            del self.sent[next(iter(self.sent))]

    def answered(self, tag: Tag) -> None:
        """Learn from a reply, in time or late."""
        sent, now = self.sent.pop((tag.request, tag.step), None), time.monotonic()
        if sent is not None:
            started = max(sent, self._last_reply)
            self.seconds += _EWMA_WEIGHT * (now - started - self.seconds)
        self._last_reply = now


class RemoteDrafter:
    """Implements ``BatchDrafter`` and ``NeuralDrafter`` over a link; used by one thread."""

    def __init__(self, connect: Callable[[], Link], *, vocab_size: int) -> None:
        """Connect in the background with ``connect``, which may raise to be tried again."""
        self._connect, self._vocab_size = connect, vocab_size
        self._link: Link | None = None
        self._fresh: list[Link] = []
        self._closing = threading.Event()
        self._known: dict[str, _Known] = {}
        self._num_requests = 0
        self._epoch = 0
        self._step = 0
        self._damaged_before = 0
        self._misses = 0
        self.counters = LinkCounters()
        self.round_trip = RoundTrip()
        self._start_connecting()

    def draft(self, view: SequenceView) -> Draft:
        """The drafter's candidates, or an empty draft when it does not answer in time."""
        return self.draft_batch([view])[0]

    def draft_batch(self, views: Sequence[SequenceView]) -> list[Draft]:
        """All questions are sent before the first reply is waited for."""
        if not self._is_up():
            self.counters.unavailable += len(views)
            return [Draft() for _ in views]
        drafts: dict[Tag, Draft] = {}
        tags: list[Tag] = []
        try:
            tags = [self._ask(view) for view in views]
            self._collect(tags, drafts)
        except LinkClosedError as error:
            logger.warning("the drafter is gone (%s): copying goes on, a new one is started", error)
            self._lose_link()
        return [drafts.get(tag, Draft()) for tag in tags] or [Draft() for _ in views]

    def link_counts(self) -> dict[str, int]:
        """The counters by name."""
        return asdict(self.counters)

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        known = self._known.pop(request_id, None)
        if known is None or self._link is None:
            return
        try:
            self._link.send(encode(Forget(request=known.number)))
        except LinkClosedError:
            self._lose_link()

    def close(self) -> None:
        """Hang up and stop connecting."""
        self._closing.set()
        self._connecting.join(_CLOSE_SECONDS)
        for link in (self._link, *self._fresh):
            if link is not None:
                link.close()
        self._link = None

    def wait_until_up(self, timeout: float) -> bool:
        """Wait for a connection; for starts and tests, never within a step."""
        deadline = time.monotonic() + timeout
        while not (up := self._is_up()) and time.monotonic() < deadline:
            time.sleep(0.005)
        return up

    def _ask(self, view: SequenceView) -> Tag:
        assert self._link is not None
        question = self._question(view)
        self.counters.asked += 1
        self._link.send(encode(question))
        self.round_trip.asked(question.tag)
        return question.tag

    def _collect(self, tags: Sequence[Tag], drafts: dict[Tag, Draft]) -> None:
        """Fill in the drafts that come in time."""
        missing = set(tags)
        patience = 0.0 if self.is_silent else len(tags) * self.round_trip.deadline_seconds
        for reply in self._replies(time.monotonic() + patience):
            self._misses = 0
            if self._fits(reply, missing):
                self.counters.answered += 1
                missing.remove(reply.tag)
                drafts[reply.tag] = Draft(
                    source="neural", candidates=reply.candidates, proposals=reply.proposals
                )
                if not missing:
                    return
        self.counters.missed += len(missing)
        self._misses += 1

    @property
    def is_silent(self) -> bool:
        """Whether it has not said anything for so long that no step waits for it."""
        return self._misses >= SILENT_MISSES

    def _question(self, view: SequenceView) -> Question:
        """The context that the drafter does not have yet, and the wish for a draft."""
        known = self._known.get(view.request_id)
        if known is None:
            known = self._known[view.request_id] = _Known(number=self._num_requests)
            self._num_requests += 1
        self._step += 1
        start, known.num_tokens = known.num_tokens, len(view.token_ids)
        features = view.features
        return Question(
            tag=Tag(
                epoch=self._epoch,
                request=known.number,
                step=self._step,
                base_length=len(view.token_ids),
            ),
            start=start,
            token_ids=tuple(view.token_ids[start:]),
            max_draft_tokens=view.max_draft_tokens,
            features=None if features is None else features[max(0, start - 1) :],
            sampling=view.sampling,
        )

    def _replies(self, deadline: float) -> Iterator[Reply]:
        """Replies as they come until the deadline; anything else is counted."""
        assert self._link is not None
        link = self._link
        while (frame := link.receive(max(0.0, deadline - time.monotonic()))) is not None:
            try:
                message = decode(frame)
            except ValueError:
                self.counters.malformed += 1
                continue
            if isinstance(message, Reply):
                self.round_trip.answered(message.tag)
                yield message
            else:
                self.counters.malformed += 1
        self.counters.malformed += link.num_damaged - self._damaged_before
        self._damaged_before = link.num_damaged

    def _fits(self, reply: Reply, missing: set[Tag]) -> bool:
        if reply.tag not in missing:
            self.counters.stale += 1
            return False
        proposed = (proposal.token_ids for proposal in reply.proposals)
        if any(not 0 <= t < self._vocab_size for c in (*reply.candidates, *proposed) for t in c):
            self.counters.out_of_vocabulary += 1
            return False
        if not reply.is_sound:
            self.counters.malformed += 1
            return False
        return True

    def _is_up(self) -> bool:
        """Take over a connection that the background made."""
        if self._link is None and self._fresh:
            self._link = self._fresh.pop()
            self._damaged_before = self._misses = 0
            self.counters.replaced += self._epoch > 0
            self._epoch += 1
        return self._link is not None

    def _lose_link(self) -> None:
        """Everything must be told again to the next drafter."""
        assert self._link is not None
        self._link.close()
        self._link = None
        self._known.clear()
        self._start_connecting()

    def _start_connecting(self) -> None:
        self._connecting = threading.Thread(
            target=self._connect_until_up, name="drafter-link", daemon=True
        )
        self._connecting.start()

    def _connect_until_up(self) -> None:
        level = logging.WARNING
        while not self._closing.is_set():
            try:
                self._fresh.append(self._connect())
            except Exception as error:  # noqa: BLE001 - whatever went wrong, it is tried again
                logger.log(level, "no drafter yet, trying again: %s", error)
                level = logging.DEBUG
                self._closing.wait(_RETRY_SECONDS)
            else:
                return
