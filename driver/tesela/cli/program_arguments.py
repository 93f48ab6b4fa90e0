"""What verbs that run until a signal share: how they log, and on which port they serve."""

from __future__ import annotations

import argparse
import os
from typing import Final

from tesela.core.errors import StartError
from tesela.edge.telemetry.logs import LEVELS, LogFormat

_HIGHEST_PORT: Final = 65535


def add_log_arguments(parser: argparse._ActionsContainer) -> None:
    """Declares `--log-format` and `--log-level`; `check_log_arguments` refuses what they cannot be."""
    parser.add_argument(
        "--log-format",
        default=os.environ.get("TESELA_LOG_FORMAT", LogFormat.TEXT),
        help="text, or json for one object a line (env TESELA_LOG_FORMAT; default text)",
    )
    parser.add_argument(
        "--log-level",
        default=os.environ.get("TESELA_LOG_LEVEL", "info"),
        help=f"{', '.join(LEVELS)} (env TESELA_LOG_LEVEL; default info)",
    )


def check_log_arguments(args: argparse.Namespace) -> None:
    """StartError where the environment or a flag says something else than can be."""
    if args.log_format not in list(LogFormat):
        raise StartError(f"--log-format is {args.log_format!r}: give one of {', '.join(LogFormat)}")
    if args.log_level not in LEVELS:
        raise StartError(f"--log-level is {args.log_level!r}: give one of {', '.join(LEVELS)}")


def parse_port(flag: str, text: str) -> int:
    """The port that `flag` names. StartError where that is none."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text) <= _HIGHEST_PORT):
        raise StartError(f"{flag} is {text!r}: give a port from 1 to {_HIGHEST_PORT}")
    return int(text)
