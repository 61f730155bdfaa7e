"""Hand-written CPU kernels: one C call for a stage's layers, exact bits per row."""

from engine.native.availability import native_available, unavailable_reason
from engine.native.install import nativize, unsupported_reason

__all__ = ["native_available", "nativize", "unavailable_reason", "unsupported_reason"]
