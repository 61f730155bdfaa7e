"""A neural drafter as a Ray actor: its own process, its own device, behind a private link.

It is no member of the verifier's process group, so its death, stall or garbage costs drafts and
nothing else. The result of :meth:`run` is the sentinel; :meth:`ping` answers beside it, from
another thread, as long as the process can run at all.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

import ray
import torch

from drafters.neural import load_drafter
from drafters.service import serve_drafter
from engine.config import EngineConfig
from engine.interfaces import NeuralDrafter
from engine.records import Draft, SequenceView
from ray_app.drafter_link import DrafterListener
from ray_app.messages import DrafterFound


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterVitals:
    """A sign of life."""

    pid: int
    num_drafts: int
    """Drafts made by this process."""


@dataclass(slots=True)
class CountedDrafter:
    """Implements ``NeuralDrafter`` with another one and counts how often it is asked."""

    inner: NeuralDrafter
    num_calls: int = 0

    def draft(self, view: SequenceView) -> Draft:
        """The other's draft."""
        self.num_calls += 1
        return self.inner.draft(view)

    def forget(self, request_id: str) -> None:
        """Told to the other."""
        self.inner.forget(request_id)


class DrafterActor:
    """Loads one drafter and serves one verifier, again and again."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._drafter: CountedDrafter | None = None
        self._listener: DrafterListener | None = None
        logging.basicConfig(format="drafter: %(levelname)s %(name)s: %(message)s")

    def prepare(self, token: str) -> DrafterFound:
        """Load the weights and listen; returns where. Raises ``ValueError`` for a bad drafter."""
        torch.set_num_threads(self._config.num_threads or 1)
        self._drafter = CountedDrafter(load_drafter(self._config))
        self._listener = DrafterListener(ray.util.get_node_ip_address(), token)
        return self._listener.address

    def ping(self) -> DrafterVitals:
        """Answers as long as the process can run at all."""
        num_drafts = 0 if self._drafter is None else self._drafter.num_calls
        return DrafterVitals(pid=os.getpid(), num_drafts=num_drafts)

    def run(self) -> None:
        """Serve verifiers one after the other until the actor is killed."""
        assert self._drafter is not None, "prepare first"
        assert self._listener is not None, "prepare first"
        while True:
            link = self._listener.accept()
            serve_drafter(link, self._drafter)
            link.close()
