"""Log lines, as text for people or as one JSON object each, with the claim that the thread works on in every one.

Where a line begins or who writes it makes no difference: the claim comes from `work.WORK`, not from the message.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, TextIO

from tesela.edge.telemetry.work import CLAIM_UID, WORK

_LOG: Final = logging.getLogger(__name__)
LEVELS: Final = ("debug", "info", "warning", "error")
_CONTROLS: Final = {code: repr(chr(code))[1:-1] for code in (*range(0x20), 0x7F)}


class LogFormat(StrEnum):
    """How a line looks."""

    TEXT = "text"
    JSON = "json"


class TextFormatter(logging.Formatter):
    """`time level logger: message`, and the claim's UID at the end of the line where the message lacks it.

    A message is one line: what others wrote (an API server's webhook, say) cannot begin one that looks like ours.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname).1s %(name)s: %(message)s%(claim)s")

    def format(self, record: logging.LogRecord) -> str:
        work = WORK.get()
        told = work is None or work.claim.uid in record.getMessage()
        record.claim = "" if told or work is None else f" [claim {work.claim.uid}]"
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- the base class names it so
        record.message = record.message.translate(_CONTROLS)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One object a line.

    `time` (UTC, RFC 3339), `level`, `logger`, `thread`, `message`; of a claim's work `claim` ("namespace/name"),
    `claimUID` and `verb`; `error` is a traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        work = WORK.get()
        if work is not None:
            line |= {
                "claim": f"{work.claim.namespace}/{work.claim.name}",
                "claimUID": work.claim.uid,
                "verb": work.verb,
            }
        elif (uid := getattr(record, CLAIM_UID, None)) is not None:
            line["claimUID"] = uid
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line)  # in ASCII, which every terminal's and every container's encoding can write


def configure_logs(log_format: LogFormat, level: str, stream: TextIO | None = None) -> None:
    """Sends what the whole process logs from `level` (one of LEVELS) on to `stream`, stderr by default."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def log_everything() -> None:
    """From now on, what Python writes to stderr by itself is a log line too: warnings, and errors that nobody caught.

    For a process that is nothing but the driver.
    """
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda failed: _log_uncaught(failed.exc_type, failed.exc_value, failed.exc_traceback)


def _log_uncaught(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
    found = None if error is None else (kind, error, traceback)
    _LOG.critical("an error that nobody caught: %s", kind.__name__, exc_info=found)
