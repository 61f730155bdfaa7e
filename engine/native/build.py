"""Compiles the native kernels once per machine: sources, compiler and CPU flags name the result.

Plain g++ and a C interface: no PyTorch headers, so a build takes seconds and one binary serves any
PyTorch version. The library is linked to PyTorch's own OpenMP runtime, so that both share one pool
of threads.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

SOURCE_DIRECTORY = Path(__file__).parent
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fPIC",
    "-fvisibility=hidden",
    # Bits must not depend on which products the compiler happens to fuse.
    "-ffp-contract=off",
)
_TIMEOUT_SECONDS = 300


class NativeBuildError(RuntimeError):
    """The kernels cannot be compiled or loaded here; the message says why."""


def build_library(
    cache_directory: Path, *, compiler: str = "g++", defines: Sequence[str] = ()
) -> Path:
    """Path of the compiled library, compiling it unless an earlier run did.

    Safe against concurrent builds: each compiles to a name of its own, then renames. ``defines``
    are further compiler flags: tests build for other vector widths.

    Raises:
        NativeBuildError: there is no such compiler, or it failed.
    """
    program = shutil.which(compiler)
    if program is None:
        raise NativeBuildError(f"there is no compiler named {compiler!r}")
    flags = (*FLAGS, *defines)
    target = cache_directory / f"kernels-{_fingerprint(program, flags)}.so"
    try:
        if target.exists():
            return target
        cache_directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_directory) as scratch:
            compiled = _compile(program, flags, Path(scratch))
            compiled.replace(target)
    except OSError as error:
        raise NativeBuildError(f"cannot keep them in {cache_directory}: {error}") from error
    return target


def _compile(program: str, flags: Sequence[str], scratch: Path) -> Path:
    compiled, library = scratch / "kernels.o", scratch / "kernels.so"
    source = str(SOURCE_DIRECTORY / "kernels.cpp")
    _run([program, *flags, "-c", source, "-o", str(compiled)])
    _run([program, "-shared", str(compiled), "-o", str(library), *_openmp_link()])
    return library


def _openmp_link() -> tuple[str, ...]:
    """PyTorch's bundled OpenMP runtime (already loaded with it), or the system's."""
    bundled = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    return (str(bundled[0]),) if bundled else ("-fopenmp",)


def _fingerprint(program: str, flags: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCE_DIRECTORY.glob("*.h")) + sorted(SOURCE_DIRECTORY.glob("*.cpp")):
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(" ".join((*flags, *_openmp_link())).encode())
    digest.update(_run([program, "--version"]))
    digest.update(_run([program, "-march=native", "-Q", "--help=target"]))
    return digest.hexdigest()[:24]


def _run(command: Sequence[str]) -> bytes:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, env=environment, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(f"{command[0]} did not run: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise NativeBuildError(f"{Path(command[0]).name} failed: {lines[0]}")
    return done.stdout
