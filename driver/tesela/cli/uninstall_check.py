"""`tesela uninstall-check`: which claims still hold GPUs of this driver, node by node, before it is taken away.

It reads the API alone, with the rights of whoever runs it; nodes need not answer. The chart runs it before `helm
uninstall` deletes anything, and `daemonset/components/uninstall-check` is the same Job for whoever uses kustomize.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Final, TypeVar

from tesela.cli.node_arguments import add_output
from tesela.core.cordon import MANAGED_BY
from tesela.core.errors import ApiNotFound
from tesela.core.model import DRIVER_NAME
from tesela.core.removal import Held, Served, list_held
from tesela.edge.kube.port import DEVICE_TAINT_RULES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Json, Kube
from tesela.edge.kube.retry import with_retries

T = TypeVar("T")
_RETRY_S: Final = 30.0
_HOME: Final = Path("~/.kube/config")
_COLUMNS: Final = ("NODE", "CLAIM", "STATE", "PODS", "DEVICES")
_SHOWN: Final = 4
"""So many names stand in a cell; `-o json` has all."""
_EPILOG: Final = """\
A claim that is prepared needs the driver once more, to be given back: a pod that ends when the driver is gone stays in
Terminating. Claims on nodes that another driver of this name serves, or that are gone, are shown and hold nothing up.

exit codes:
  0    no claim needs the driver: it can be removed
  1    some do, and are listed; or the API could not be asked: one line on stderr says why
  2    wrong usage

examples:
  tesela uninstall-check
  tesela uninstall-check --node node-1 -o json | jq '.removable'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares which node, the output format and how to reach the API."""
    parser.epilog = _EPILOG
    parser.add_argument("--node", help="this node alone (default: all of them)")
    add_output(parser)
    parser.add_argument(
        "--kubeconfig",
        default=os.environ.get("KUBECONFIG", ""),
        help="kubeconfig file (env KUBECONFIG; default: ~/.kube/config, else the pod's ServiceAccount)",
    )


def run(args: argparse.Namespace) -> int:
    """Shows who holds what: 1 where a claim needs the driver. ApiError says why it cannot be told."""
    from tesela.edge.kube.client import KubeClient  # noqa: PLC0415 - `--help` needs no Kubernetes client
    from tesela.edge.kube.config import load_config  # noqa: PLC0415 - likewise

    home = _HOME.expanduser()
    kube = KubeClient(load_config(args.kubeconfig or (str(home) if home.exists() else None)))
    try:
        return check(kube, args)
    finally:
        kube.close()


def check(kube: Kube, args: argparse.Namespace) -> int:
    """The same, with an open client."""
    slices, claims, nodes = (_list(kube, one) for one in (RESOURCE_SLICES, RESOURCE_CLAIMS, NODES))
    held = [one for one in list_held(claims, slices, nodes) if args.node in (None, one.node)]
    rules = _list_rules(kube) if args.node is None else []
    keeping = [one for one in held if one.keeps_driver]
    if args.output == "json":
        print(json.dumps(render_report(held, rules), indent=2))
    else:
        print("\n".join(_render_lines(held, keeping, rules)))
    return 1 if keeping else 0


def render_report(held: Sequence[Held], rules: Sequence[str]) -> dict[str, Any]:
    """For machines: `held` has every claim, `removable` whether none of them needs the driver."""
    return {
        "driver": DRIVER_NAME,
        "removable": not any(one.keeps_driver for one in held),
        "held": [
            {
                "node": one.node,
                "claim": one.claim,
                "claimUID": one.uid,
                "state": one.stage.value,
                "pods": list(one.pods),
                "devices": list(one.devices),
                "servedBy": one.served.value,
                "needsDriver": one.keeps_driver,
            }
            for one in held
        ],
        "deviceTaintRules": list(rules),
    }


def _list(kube: Kube, resource: Any) -> tuple[Json, ...]:
    return _retried(lambda: kube.list(resource)).items


def _list_rules(kube: Kube) -> list[str]:
    """The names of the rules that a cordon of ours left; none where the API server knows no such kind."""
    try:
        rules = _list(kube, DEVICE_TAINT_RULES)
    except ApiNotFound:
        return []
    ours = (one["metadata"] for one in rules if (one["metadata"].get("labels") or {}).get(MANAGED_BY) == "tesela")
    return sorted(str(one["name"]) for one in ours)


def _render_lines(held: Sequence[Held], keeping: Sequence[Held], rules: Sequence[str]) -> Iterator[str]:
    if held:
        yield from _render_table([_COLUMNS, *(_render_row(one) for one in held)])
    if keeping:
        where, need = _count({one.node for one in keeping}, "node"), "needs" if len(keeping) == 1 else "need"
        yield (
            f"{_count(keeping, 'claim')} on {where} {need} the driver: end the pods and wait until their claims are "
            "free, then remove it; see docs/upgrade.md, Removal"
        )
    else:
        yield f"no claim needs {DRIVER_NAME} of tesela: it can be removed"
    if rules:
        yield (
            f"{_count(rules, 'DeviceTaintRule')} of a cordon {'stays' if len(rules) == 1 else 'stay'} and would taint "
            f"another driver's devices: kubectl delete devicetaintrules -l {MANAGED_BY}=tesela"
        )


def _render_row(one: Held) -> tuple[str, ...]:
    state = one.stage.value if one.served is Served.TESELA else f"{one.stage} ({one.served})"
    return (one.node, one.claim, state, _join(one.pods) or "-", _join(one.devices))


def _render_table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _join(names: Sequence[str]) -> str:
    left = len(names) - _SHOWN
    return ",".join(names[:_SHOWN]) + (f" and {left} more" if left > 0 else "")


def _count(some: Iterable[object], what: str) -> str:
    number = len(list(some))
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _retried(call: Callable[[], T]) -> T:
    return with_retries(call, Event(), _RETRY_S)
