"""The drafter's end of a link: keeps each request's context and answers the newest question.

When the verifier went on without an answer, several questions wait. All of them bring context, only
the newest of a request deserves the work.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from drafters.messages import Forget, Question, Reply, decode, encode
from engine.copy_source import NO_COPIES
from engine.features import FeatureHistory
from engine.interfaces import NeuralDrafter
from engine.records import SequenceView
from parallel.link import Link, LinkClosedError

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Context:
    """What is known of one request."""

    token_ids: list[int] = field(default_factory=list)
    features: FeatureHistory = field(default_factory=FeatureHistory)

    def extend(self, question: Question) -> None:
        """Take in what a question brings. Raises ``ValueError`` when something is missing."""
        if question.start != len(self.token_ids):
            raise ValueError(
                f"context from token {question.start}, but {len(self.token_ids)} are known"
            )
        self.token_ids += question.token_ids
        if len(self.token_ids) != question.tag.base_length:
            raise ValueError("a question about another length than its context's")
        if question.features is not None:
            self.features.append(question.features)

    def view(self, question: Question) -> SequenceView:
        """What the drafter sees."""
        return SequenceView(
            request_id=str(question.tag.request),
            token_ids=self.token_ids,
            copies=NO_COPIES,
            max_draft_tokens=question.max_draft_tokens,
            probe_score=None,
            features=self.features.rows,
            sampling=question.sampling,
        )


def serve_drafter(link: Link, drafter: NeuralDrafter) -> None:
    """Answer until the verifier hangs up; then forget its requests, a new one numbers its own."""
    contexts: dict[int, _Context] = {}
    while True:
        try:
            questions = _next_questions(link, drafter, contexts)
            for question in questions.values():
                draft = drafter.draft(contexts[question.tag.request].view(question))
                reply = Reply(
                    tag=question.tag, candidates=draft.candidates, proposals=draft.proposals
                )
                link.send(encode(reply))
        except LinkClosedError:
            for request in contexts:
                drafter.forget(str(request))
            return


def _next_questions(
    link: Link, drafter: NeuralDrafter, contexts: dict[int, _Context]
) -> dict[int, Question]:
    """Wait for a frame, read all that are here: the newest question per request."""
    questions: dict[int, Question] = {}
    frame = link.receive(None)
    while frame is not None:
        try:
            message = decode(frame)
            if isinstance(message, Question):
                contexts.setdefault(message.tag.request, _Context()).extend(message)
                questions[message.tag.request] = message
            elif isinstance(message, Forget):
                contexts.pop(message.request, None)
                questions.pop(message.request, None)
                drafter.forget(str(message.request))
        except ValueError as error:
            # Context was lost: only a new connection brings it again.
            logger.warning("hanging up: %s", error)
            link.close()
            raise LinkClosedError(str(error)) from error
        frame = link.receive(0.0)
    return questions
