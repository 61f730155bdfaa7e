"""Our side of a peer: start its worker script, send prompts, read answers, stop it.

The worker is a persistent process that speaks JSON lines over its standard streams; while it waits
for a line it sleeps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from launch.bench.runs import Run

MODES = {
    "transformers": ("plain", "prompt_lookup"),
    "vllm": ("plain", "ngram"),
}
"""What each peer is measured at; the first is its own baseline."""


_WORKER_MODULE = "launch.bench.peers.{peer}_worker"
_ROOT = Path(__file__).parents[3]
_NOT_INHERITED = ("KMP_BLOCKTIME", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_PROC_BIND")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """How a peer's worker is started."""

    peer: str
    mode: str
    python: str
    """Python of the environment that has the peer."""
    model: Path
    dtype: str
    threads: int
    max_model_len: int


class PeerContestant:
    """A peer in one mode. Raises ValueError with the worker's sentence if it cannot start."""

    def __init__(self, options: PeerOptions) -> None:
        self.label = f"{options.peer}:{options.mode}"
        self._process = _start(options)
        greeting = self._receive()
        if "error" in greeting:
            self.close()
            raise ValueError(f"peer {self.label}: {greeting['error']}")
        self.versions: dict[str, str] = greeting["versions"]

    @property
    def processes(self) -> tuple[int, ...]:
        """The worker's process."""
        return (self._process.pid,)

    def answer(self, prompt_ids: tuple[int, ...], max_tokens: int) -> Run:
        """Ask the worker and wait."""
        request = {"prompt_ids": list(prompt_ids), "max_tokens": max_tokens}
        _pipe(self._process.stdin).write(json.dumps(request) + "\n")
        _pipe(self._process.stdin).flush()
        reply = self._receive()
        if "error" in reply:
            raise ValueError(f"peer {self.label}: {reply['error']}")
        reply["token_ids"] = tuple(reply["token_ids"])
        return Run(**reply)

    def close(self) -> None:
        """End the worker: it stops when its input ends."""
        _pipe(self._process.stdin).close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _pipe(self._process.stdout).close()

    def _receive(self) -> dict[str, Any]:
        line = _pipe(self._process.stdout).readline()
        if not line:
            code = self._process.wait()
            return {"error": f"its worker ended with code {code} before it answered"}
        reply: dict[str, Any] = json.loads(line)
        return reply


def _start(options: PeerOptions) -> subprocess.Popen[str]:
    flags = {
        "--model": options.model,
        "--mode": options.mode,
        "--dtype": options.dtype,
        "--threads": options.threads,
        "--max-model-len": options.max_model_len,
    }
    command = [options.python, "-m", _WORKER_MODULE.format(peer=options.peer)]
    for name, value in flags.items():
        command += [name, str(value)]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(options.threads),
        )
    except OSError as error:
        raise ValueError(f"--peer-python {options.python!r} cannot be run: {error}.") from None


def _environment(threads: int) -> dict[str, str]:
    """Equal threads for everybody, bound to the same cores; no spinning is switched on or off.

    ``KMP_BLOCKTIME`` in particular is left alone: it changes what one thread means to vLLM.
    """
    cores = sorted(os.sched_getaffinity(0))[:threads]
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return {
        **kept,
        "PYTHONPATH": str(_ROOT),
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


def start_peers(
    peers: tuple[str, ...], *, peer_python: str | None, options: PeerOptions
) -> list[PeerContestant]:
    """A worker per peer and mode; ``options`` gives everything but peer, mode and python.

    vLLM runs in ``peer_python``, an environment of its own; transformers in ours.
    """
    contestants: list[PeerContestant] = []
    try:
        for peer in peers:
            python = peer_python if peer == "vllm" and peer_python else sys.executable
            for mode in MODES[peer]:
                wanted = replace(options, peer=peer, mode=mode, python=python)
                contestants.append(PeerContestant(wanted))
    except BaseException:
        for contestant in contestants:
            contestant.close()
        raise
    return contestants


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None, "both streams are pipes"
    return stream
