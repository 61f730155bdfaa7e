"""Keeps one drafter actor alive: starts it, watches it, replaces it, says where it listens.

Two signs of trouble: its :meth:`run` call ends (the process died), or it does not answer a ping
(the process is stopped or stuck). Either way it is killed and a new one is started; the verifier
goes on without drafts meanwhile.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from engine.config import EngineConfig
from ray_app.drafter_actor import DrafterActor, DrafterVitals
from ray_app.messages import DrafterFound
from ray_app.worker_group import EXIT_SECONDS, rank_environment, wait_gone

logger = logging.getLogger(__name__)

PING_SECONDS = 10.0
"""Silence after which a drafter counts as hung."""
WATCH_SECONDS = 0.5
"""Pause between two looks at it."""
RESPAWN_SECONDS = 1.0
"""Pause after a drafter that did not even start."""


class DrafterKeeper:
    """Owns the drafter actor; all waiting happens in its own thread."""

    def __init__(self, config: EngineConfig, announce: Callable[[DrafterFound], None]) -> None:
        """``announce`` is called from the keeper's thread whenever a drafter listens."""
        self._config = replace(config, num_threads=config.num_threads or 1)
        self._announce = announce
        self._stopping = threading.Event()
        self._actor: Any = None
        self._vitals: DrafterVitals | None = None
        self._address: DrafterFound | None = None
        self._thread: threading.Thread | None = None
        self.num_started = 0

    @property
    def vitals(self) -> DrafterVitals | None:
        """The current drafter's newest sign of life; None while there is none."""
        return self._vitals

    @property
    def address(self) -> DrafterFound | None:
        """Where the newest drafter listens."""
        return self._address

    def start(self) -> None:
        """Start the first drafter and wait for it, then watch in the background.

        Raises:
            ValueError: the drafter's weights do not fit; one sentence.
        """
        try:
            sentinel = self._spawn()
        except RayTaskError as error:
            self._kill()
            raise (error.cause if isinstance(error.cause, ValueError) else error) from None
        self._thread = threading.Thread(
            target=self._keep, args=(sentinel,), name="drafter-keeper", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the drafter; its process is gone on return."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        self._kill()

    def _spawn(self) -> Any:
        """Start an actor, announce it, and return its sentinel."""
        threads = self._config.num_threads or 1
        self._actor = (
            ray.remote(DrafterActor)
            .options(
                num_cpus=0,
                max_restarts=0,
                max_concurrency=2,
                runtime_env={"env_vars": rank_environment("cpu", threads)},
            )
            .remote(self._config)
        )
        address = ray.get(self._actor.prepare.remote(secrets.token_hex(16)))
        self._vitals = ray.get(self._actor.ping.remote())
        sentinel = self._actor.run.remote()
        self.num_started += 1
        self._address = address
        self._announce(address)
        return sentinel

    def _keep(self, sentinel: Any) -> None:
        while not self._stopping.is_set():
            if sentinel is not None and self._is_well(sentinel):
                self._stopping.wait(WATCH_SECONDS)
                continue
            self._kill()
            try:
                sentinel = self._spawn()
            except RayError:
                logger.exception("the drafter did not start; trying again")
                sentinel = None
                self._stopping.wait(RESPAWN_SECONDS)

    def _is_well(self, sentinel: Any) -> bool:
        ended, _ = ray.wait([sentinel], timeout=0)
        if ended:
            logger.warning("the drafter (%s) died; starting another", self._name)
            return False
        try:
            self._vitals = ray.get(self._actor.ping.remote(), timeout=PING_SECONDS)
        except (GetTimeoutError, RayError):
            logger.warning("the drafter (%s) does not answer; replacing it", self._name)
            return False
        return True

    def _kill(self) -> None:
        if self._actor is None:
            return
        ray.kill(self._actor)
        if self._vitals is not None:
            wait_gone([self._vitals.pid], EXIT_SECONDS)
        self._actor = self._vitals = None

    @property
    def _name(self) -> str:
        return "not yet loaded" if self._vitals is None else f"process {self._vitals.pid}"
