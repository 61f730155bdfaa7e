"""Hand-written CPU kernels: one C call per decoder sub-block, exact bits per row."""

from engine.native.availability import native_available, unavailable_reason
from engine.native.install import nativize

__all__ = ["native_available", "nativize", "unavailable_reason"]
