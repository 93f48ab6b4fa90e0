"""`tesela adoption`: what the driver took over from NVIDIA's DRA driver on this node, or would take over now.

While NVIDIA's checkpoint lies there, that is a preview: it reads the file, NVML and the API, and writes nothing, so it
may run beside NVIDIA's driver. Once the driver has adopted it, its report is shown, without asking anybody.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tesela.cli.node_arguments import (
    add_adopted_partitions,
    add_driver_root_mount,
    add_output,
    add_plugins_dir,
    get_adopted_partitions,
    get_state_dir,
)
from tesela.cli.nvml_beside import open_beside
from tesela.core.adoption import AdoptionReport, Fate
from tesela.core.errors import StateError
from tesela.core.roster import EMPTY_ROSTER, Roster, plan_roster
from tesela.core.shape import DEFAULT_POLICY
from tesela.edge.backends import open_nvml
from tesela.edge.documents.policy import read_policy
from tesela.edge.host.host import Host
from tesela.edge.kube.times import render_time
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.store.checkpoint import CheckpointFile
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore

_CALL_S: Final = 15.0
_EPILOG: Final = """\
The driver adopts at its start: each claim that NVIDIA's driver has prepared becomes a record of its own, keeps its CDI
file and is given back when its pod ends. What is left is never destroyed; each line says why (docs/moving.md).

exit codes:
  0    shown, whatever is adopted or left
  1    there is nothing to adopt and nothing was, or it cannot be told: one line on stderr says why
  2    wrong usage

examples:
  kubectl exec -n NAMESPACE POD -- tesela adoption --policy /etc/tesela/policy.yaml
  tesela adoption --node-name node1 -o json | jq '.claims[] | select(.fate == "left")'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the output format, and where to look, as given to `tesela plugin`."""
    parser.epilog = _EPILOG
    add_output(parser)
    where = parser.add_argument_group("where to look, as given to tesela plugin")
    where.add_argument("--node-name", default=os.environ.get("NODE_NAME", ""), help="env NODE_NAME")
    where.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG", ""), help="env KUBECONFIG")
    where.add_argument("--nvml", default=os.environ.get("TESELA_NVML", "real"), help="env TESELA_NVML (default real)")
    where.add_argument("--policy", type=Path, metavar="FILE", help="the driver's policy file")
    add_adopted_partitions(where)
    add_plugins_dir(where)
    add_driver_root_mount(where)
    where.add_argument("--pod-resources", type=Path, metavar="SOCKET", help="default: as tesela plugin")
    where.add_argument("--proc-root", type=Path, default=Path("/proc"), metavar="DIR", help="%(default)s")
    where.add_argument("--sys-root", type=Path, default=Path("/sys"), metavar="DIR", help="%(default)s")


def run(args: argparse.Namespace) -> int:
    """Shows the preview or the report. StateError says why there is neither."""
    file = CheckpointFile(get_state_dir(args))
    ahead = file.path.exists()
    report = _preview(args, file) if ahead else file.read_report()
    if report is None:
        raise StateError(
            f"{file.path} does not exist, and nothing was adopted here: NVIDIA's driver never ran on this node, or "
            "--plugins-dir is another folder"
        )
    shown = json.dumps(_render(report), indent=2) if args.output == "json" else "\n".join(_list_lines(report))
    print(shown)
    return 0


def _preview(args: argparse.Namespace, file: CheckpointFile) -> AdoptionReport | None:
    if not args.node_name:
        args.leaf.error("--node-name: give this node's name, which is that of its pool")
    nvml = WatchedNvml(open_nvml(args.nvml, args.driver_root_mount or Path("/")), timeout_s=_CALL_S)
    with open_beside(get_state_dir(args), nvml):
        return _preview_with(args, file, nvml)


def _preview_with(args: argparse.Namespace, file: CheckpointFile, nvml: WatchedNvml) -> AdoptionReport | None:
    from tesela.edge.kube.client import KubeClient  # noqa: PLC0415 -- tens of megabytes, for a preview alone
    from tesela.edge.kube.config import load_config  # noqa: PLC0415 -- likewise
    from tesela.edge.kubelet.pod_resources import PodResources  # noqa: PLC0415 -- likewise
    from tesela.plugin.adopt import preview  # noqa: PLC0415 -- likewise
    from tesela.plugin.adopt_look import Surroundings  # noqa: PLC0415 -- likewise
    from tesela.plugin.inventory import discover  # noqa: PLC0415 -- likewise
    from tesela.plugin.partition import Partitions  # noqa: PLC0415 -- likewise

    host = Host(proc_root=args.proc_root, sys_root=args.sys_root)
    inventory = discover(nvml, host, Partitions(nvml))
    boot_id, module_token = host.get_boot_id(), host.get_module_token()
    roster = plan_roster(_read_roster(args), inventory, boot_id=boot_id, module_token=module_token)
    socket = args.pod_resources or args.kubelet_root / "pod-resources/kubelet.sock"
    around = Surroundings(
        pool=args.node_name,
        policy=DEFAULT_POLICY if args.policy is None else read_policy(args.policy),
        kube=KubeClient(load_config(args.kubeconfig or None)),
        get_boot_id=lambda: boot_id,
        get_roster=lambda: roster,
        list_live=lambda gpu_uuid: tuple(one for one in inventory.partitions if one.gpu_uuid == gpu_uuid),
        read_time_slice=lambda _gpu_uuid: None,
        list_names=PodResources(socket).list_claims,
        list_records=lambda: RecordStore(get_state_dir(args)).list().records,
        partitions=get_adopted_partitions(args),
    )
    return preview(around, file, at_s=int(time.time()))


def _read_roster(args: argparse.Namespace) -> Roster:
    """A damaged one is the driver's to rebuild; numbers only make remarks here."""
    try:
        return RosterStore(get_state_dir(args)).read_roster()
    except StateError:
        return EMPTY_ROSTER


def _render(report: AdoptionReport) -> dict[str, Any]:
    return {
        "at": render_time(report.at_s),
        "preview": not report.kept_as,
        "keptAs": report.kept_as or None,
        "claims": [
            {
                "uid": one.claim.uid,
                "namespace": one.claim.namespace or None,
                "name": one.claim.name or None,
                "devices": list(one.devices),
                "fate": one.fate.value,
                "remarks": list(one.remarks),
            }
            for one in report.claims
        ],
    }


def _list_lines(report: AdoptionReport) -> Iterator[str]:
    adopted = sum(one.fate is Fate.ADOPTED for one in report.claims)
    counts = f"{adopted} adopted, {len(report.claims) - adopted} left"
    if report.kept_as:
        yield f"taken over at {render_time(report.at_s)}: {counts}; NVIDIA's checkpoint is kept as {report.kept_as}"
    else:
        yield f"preview at {render_time(report.at_s)}, nothing was written: {counts}"
    for one in report.claims:
        name = f"{one.claim.namespace}/{one.claim.name}" if one.claim.name else "claim"
        yield f"  {one.fate} {name} ({one.claim.uid}): {', '.join(one.devices) or 'no device is told'}"
        yield from (f"    {remark}" for remark in one.remarks)
