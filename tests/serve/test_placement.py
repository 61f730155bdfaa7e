"""Reserving room for a gang on a real cluster."""

from __future__ import annotations

import logging
import threading

import pytest
from ray.util.placement_group import placement_group

from ray_app.placement import Placement, release, reserve
from tests.support.leftovers import placement_groups

pytestmark = pytest.mark.ray

TWO_CPUS = Placement(bundle={"CPU": 2.0}, num_bundles=1)


def test_a_gang_waits_for_others_says_why_and_gives_up_cleanly(
    cluster: None,  # noqa: ARG001
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four CPUs, three taken: two will fit later, not now."""
    monkeypatch.setattr("ray_app.placement._FIRST_NOTE_SECONDS", 0.1)
    others = placement_group([{"CPU": 3.0}])
    assert others.wait(30.0)
    with (
        caplog.at_level(logging.WARNING, "ray_app.placement"),
        pytest.raises(TimeoutError, match="2 CPUs on one node wanted, 0 GPUs and 1 CPU free"),
    ):
        reserve(TWO_CPUS, timeout=1.0, cancelled=threading.Event())
    assert "waiting for resources: 2 CPUs on one node wanted" in caplog.text
    release(others)
    room = reserve(TWO_CPUS, timeout=30.0, cancelled=threading.Event())
    release(room)
    assert placement_groups() == []


def test_a_cancelled_start_stops_waiting(cluster: None) -> None:  # noqa: ARG001
    cancelled = threading.Event()
    cancelled.set()
    others = placement_group([{"CPU": 3.0}])
    assert others.wait(30.0)
    with pytest.raises(TimeoutError, match="no room"):
        reserve(TWO_CPUS, timeout=600.0, cancelled=cancelled)
    release(others)
    assert placement_groups() == []
