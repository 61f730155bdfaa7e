"""Where converted models and compiled kernels are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache_directory() -> Path:
    """``switchsteer`` in ``$XDG_CACHE_HOME``, by default ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "switchsteer"
