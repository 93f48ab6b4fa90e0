"""`tesela gpu`: takes GPUs, or devices of them, out of service anywhere in the cluster, and gives them back.

It writes DeviceTaintRules, one per device, with the rights of whoever runs it; the driver has no part in it. Each verb
shows first whom it concerns, and `--dry-run` ends there.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tesela.cli.node_arguments import add_output
from tesela.core.errors import ApiNotFound, StateError

_HOME: Final = Path("~/.kube/config")
_EXIT_CODES: Final = """\
exit codes:
  0    done
  1    failed, or not done yet; one line on stderr says why and what to do
  2    wrong usage
  130  interrupted; what was written stands, and the same command goes on from there"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares cordon, drain and uncordon."""
    parser.epilog = (
        f"{_EXIT_CODES}\n\nexamples:\n"
        "  tesela gpu drain gpu-3 --node node-1 --dry-run\n  tesela gpu uncordon gpu-3 --node node-1"
    )
    verbs = parser.add_subparsers(dest="op", required=True, metavar="VERB")
    cordon = _verb(
        verbs,
        "cordon",
        "let no new claim get a device; pods that run stay",
        "tesela gpu cordon gpu-3 --node node-1 --reason 'row remapping pending'",
    )
    cordon.add_argument(
        "--reason", default="maintenance", help="shown in the rule and its taint (default: %(default)s)"
    )
    drain = _verb(
        verbs,
        "drain",
        "keep new claims away, and delete the pods that use it without regard to disruption budgets",
        "tesela gpu drain gpu-3 --node node-1 --dry-run\n  tesela gpu drain gpu-3 --node node-1 --yes",
    )
    drain.add_argument("--reason", default="maintenance", help="shown in the rule and its taint (default: %(default)s)")
    drain.add_argument("--yes", action="store_true", help="do it; without this it ends after the dry run")
    drain.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="seconds to wait for the pods to end (default: 300)"
    )
    _verb(verbs, "uncordon", "give devices back; ends a drain too", "tesela gpu uncordon gpu-3 --node node-1")


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, does: str, example: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=does,
        description=does,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"{_EXIT_CODES}\n\nexamples:\n  {example}",
    )
    parser.add_argument("gpu", metavar="GPU", help="its UUID, gpu-N as in its device names, or the name of one device")
    parser.add_argument("--node", help="its node; needed where several nodes have a gpu-N")
    parser.add_argument("--dry-run", dest="dry_run", action="store_true", help="show whom it concerns; change nothing")
    add_output(parser)
    parser.add_argument(
        "--kubeconfig",
        default=os.environ.get("KUBECONFIG", ""),
        help="kubeconfig file (env KUBECONFIG; default: ~/.kube/config, else the pod's ServiceAccount)",
    )
    parser.set_defaults(leaf=parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the verb. StateError, TryAgain or ApiError says why not."""
    from tesela.cli.gpu_service import cordon, drain, uncordon  # noqa: PLC0415 - `--help` needs no Kubernetes client
    from tesela.edge.kube.client import KubeClient  # noqa: PLC0415 - likewise
    from tesela.edge.kube.config import load_config  # noqa: PLC0415 - likewise

    acts: dict[str, Callable[..., int]] = {"cordon": cordon, "drain": drain, "uncordon": uncordon}
    home = _HOME.expanduser()
    kube = KubeClient(load_config(args.kubeconfig or (str(home) if home.exists() else None)))
    try:
        return acts[args.op](kube, args)
    except ApiNotFound as error:
        raise StateError(
            f"this API server has no DeviceTaintRule in resource.k8s.io/v1 ({error}): that takes Kubernetes 1.37 with "
            "the gate DRADeviceTaintRules; cordon the node instead, by `kubectl cordon`"
        ) from error
    finally:
        kube.close()
