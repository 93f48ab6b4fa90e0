"""What verbs that work on the driver's own folder share: where that is, how to answer, who asks and why."""

from __future__ import annotations

import argparse
import getpass
import os
from pathlib import Path
from typing import Final

from tesela.core.adoption import TheirPartitions
from tesela.core.errors import StartError
from tesela.core.model import DRIVER_NAME

DEFAULT_KUBELET_ROOT: Final = "/var/lib/kubelet"
_LONGEST_REASON: Final = 256
"""It is in every sentence to a pod that waits, in Events, and in every claim's status."""


def add_plugins_dir(parser: argparse._ActionsContainer) -> None:
    """Declares `--plugins-dir` and `--kubelet-root`; `get_plugins_dir` and `get_state_dir` read them."""
    add_kubelet_root(parser)
    parser.add_argument(
        "--plugins-dir",
        type=Path,
        metavar="DIR",
        help="the kubelet's folder of plugins, as given to tesela plugin (default: plugins in --kubelet-root)",
    )


def add_kubelet_root(parser: argparse._ActionsContainer) -> None:
    """Declares `--kubelet-root`."""
    parser.add_argument(
        "--kubelet-root",
        type=Path,
        default=Path(os.environ.get("TESELA_KUBELET_ROOT") or DEFAULT_KUBELET_ROOT),
        metavar="DIR",
        help=f"the kubelet's own folder, its --root-dir (env TESELA_KUBELET_ROOT; default {DEFAULT_KUBELET_ROOT})",
    )


def add_driver_root_mount(parser: argparse._ActionsContainer) -> None:
    """Declares `--driver-root-mount`; None where nobody says."""
    parser.add_argument(
        "--driver-root-mount",
        type=Path,
        default=Path(text) if (text := os.environ.get("TESELA_DRIVER_ROOT_MOUNT")) else None,
        metavar="DIR",
        help="where this process sees --driver-root: libnvidia-ml.so.1 and nvidia-smi are sought there "
        "(env TESELA_DRIVER_ROOT_MOUNT; default: --driver-root)",
    )


def add_adopted_partitions(parser: argparse._ActionsContainer) -> None:
    """Declares `--adopted-partitions`; `get_adopted_partitions` reads it."""
    parser.add_argument(
        "--adopted-partitions",
        default=os.environ.get("TESELA_ADOPTED_PARTITIONS", TheirPartitions.AUTO),
        metavar="HOW",
        help="how NVIDIA's DRA driver, where this one takes the node over, came by the partitions of its claims: "
        "on-demand (they go with their claims), static (they stay), or auto: as its ResourceSlices say "
        "(env TESELA_ADOPTED_PARTITIONS; default auto)",
    )


def get_adopted_partitions(args: argparse.Namespace) -> TheirPartitions:
    """What was said. StartError where that is none of the three."""
    if args.adopted_partitions not in list(TheirPartitions):
        raise StartError(
            f"--adopted-partitions is {args.adopted_partitions!r}: give one of {', '.join(TheirPartitions)}"
        )
    return TheirPartitions(args.adopted_partitions)


def get_state_dir(args: argparse.Namespace) -> Path:
    """The driver's own folder, in the folder of plugins that `args` name."""
    return get_plugins_dir(args) / DRIVER_NAME


def get_plugins_dir(args: argparse.Namespace) -> Path:
    """The folder of plugins that `args` name."""
    plugins_dir: Path | None = args.plugins_dir
    kubelet_root: Path = args.kubelet_root
    return plugins_dir or kubelet_root / "plugins"


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
