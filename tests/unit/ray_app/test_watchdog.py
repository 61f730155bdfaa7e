"""What takes too long is noticed, what ends in time is not, and the process writes its stacks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from ray_app.watchdog import EXIT_CODE, Watchdog


def test_only_what_takes_too_long_is_noticed() -> None:
    hung = threading.Event()
    watchdog = Watchdog(0.2, hung.set)
    for _ in range(5):
        with watchdog.watching():
            time.sleep(0.02)
    time.sleep(0.4)
    assert not hung.is_set(), "nothing was watched"
    with watchdog.watching():
        assert hung.wait(5.0)


def test_a_hung_process_ends_with_its_stacks() -> None:
    code = (
        "import time\n"
        "from ray_app.watchdog import Watchdog\n"
        "def a_step_that_hangs():\n    time.sleep(60)\n"
        "with Watchdog(0.2).watching():\n    a_step_that_hangs()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False
    )
    assert ended.returncode == EXIT_CODE
    assert "a_step_that_hangs" in ended.stderr
