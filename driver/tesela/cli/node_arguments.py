"""What verbs that work on the driver's own folder share: where that is, how to answer, who asks and why."""

from __future__ import annotations

import argparse
import getpass
import os
from pathlib import Path
from typing import Final

_LONGEST_REASON: Final = 256
"""It is in every sentence to a pod that waits, in Events, and in every claim's status."""


def add_plugins_dir(parser: argparse.ArgumentParser) -> None:
    """Declares `--plugins-dir`."""
    parser.add_argument(
        "--plugins-dir",
        type=Path,
        default=Path("/var/lib/kubelet/plugins"),
        metavar="DIR",
        help="the kubelet's folder of plugins, as given to tesela plugin (default: %(default)s)",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Declares `-o`: for people by default, `json` for machines."""
    parser.add_argument("-o", dest="output", choices=("text", "json"), default="text", help="output format")


def parse_reason(args: argparse.Namespace) -> str:
    """`--reason` on one line. Wrong usage where that is empty or too long."""
    reason = " ".join(args.reason.split())
    if not 0 < len(reason) <= _LONGEST_REASON:
        args.leaf.error(f"--reason: give a text of at most {_LONGEST_REASON} characters")
    return reason


def get_user() -> str:
    """Who asks, as far as the machine tells: the user before sudo, else the user's name or number."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"  # a container need not have a name for it
