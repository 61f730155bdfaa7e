"""Log lines of the ingress: text, or one JSON object a line with the request's id."""

from __future__ import annotations

import json
import logging
from typing import Literal

LogFormat = Literal["text", "json"]

_PACKAGES = ("ray_app", "drafters", "engine", "parallel")
_TEXT = "%(levelname)s %(asctime)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message; the request's id and the exception where there are some."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = getattr(record, "request_id", None)
        if request_id is not None:
            fields["request_id"] = request_id
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def configure_logs(form: LogFormat) -> None:
    """Our packages' lines in one form; JSON has one per request, text trouble only."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(_TEXT))
    for name in _PACKAGES:
        package = logging.getLogger(name)
        package.handlers = [handler]
        package.propagate = False
        package.setLevel(logging.INFO if form == "json" else logging.WARNING)
