"""`tesela health`: what is wrong with this node's GPUs, how a person takes it back, and what counts as wrong at all.

`list` and `clear` run on the node, as the user of the driver: they work on the driver's own folder, and the running
driver notices within seconds. `signals` runs anywhere.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, Final

from tesela.cli.health_signals import render_signals
from tesela.cli.node_arguments import add_output, add_plugins_dir, get_state_dir, get_user, parse_reason
from tesela.core.errors import StateError
from tesela.core.health.model import Clearance, Counted, Finding, HealthState, NodeHealth
from tesela.core.health.rules import plan_clear
from tesela.core.health.signals import DEFAULT_HEALTH_POLICY
from tesela.core.model import Placement
from tesela.core.roster import KnownGpu, Roster
from tesela.core.shape import DEFAULT_POLICY
from tesela.edge.documents.policy import read_policy
from tesela.edge.kube.times import render_time
from tesela.edge.store.health import HealthStore
from tesela.edge.store.locks import FileLocks, hold
from tesela.edge.store.roster import RosterStore

_LOCK_TIMEOUT_S: Final = 10.0
_EPILOG: Final = """\
Run it where the driver runs: in its pod on that node, or on the node as the driver's user.

exit codes:
  0    done
  1    failed; one line on stderr says why and what to do
  2    wrong usage

"""
_LIST_EXAMPLE: Final = """\
examples:
  kubectl exec -n NAMESPACE POD -- tesela health list
  tesela health list gpu-3 -o json"""
_SIGNALS_EPILOG: Final = """\
exit codes:
  0    done
  1    the policy file cannot be read: one line on stderr says why
  2    wrong usage

examples:
  tesela health signals
  tesela health signals --policy policy.yaml -o json"""
_CLEAR_NOTE: Final = """\
A condition that NVML still reads comes back at the next reading; a counter comes back only when it counts further.

"""
_CLEAR_EXAMPLE: Final = """\
examples:
  kubectl exec -n NAMESPACE POD -- tesela health clear gpu-3 --reason 'board replaced, ticket 4711'
  tesela health clear gpu-0 --signal xid-119 --reason 'reset by hand'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares `list`, `clear` and `signals`."""
    parser.epilog = _EPILOG + _LIST_EXAMPLE
    operations = parser.add_subparsers(dest="op", required=True, metavar="OPERATION")
    listing = operations.add_parser(
        "list",
        help="what stands against this node's GPUs, and what was cleared",
        description="List what stands against this node's GPUs and their partitions, and what persons cleared.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_EPILOG + _LIST_EXAMPLE,
    )
    listing.add_argument(
        "gpu", metavar="GPU", nargs="?", help="its UUID, or gpu-N as in its device names (default: all)"
    )
    add_output(listing)
    clear = operations.add_parser(
        "clear",
        help="take back what stands against a GPU",
        description="Take back what stands against a GPU and its partitions.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_CLEAR_NOTE + _EPILOG + _CLEAR_EXAMPLE,
    )
    clear.add_argument("gpu", metavar="GPU", help="its UUID, or gpu-N as in its device names")
    clear.add_argument("--signal", metavar="S", help="only this signal, as in xid-119 (default: all that stand)")
    clear.add_argument("--reason", required=True, metavar="TEXT", help="why; it is kept, and told in the Event")
    for operation in (listing, clear):
        add_plugins_dir(operation)
        operation.set_defaults(leaf=operation)
    table = operations.add_parser(
        "signals",
        help="the table of signals, as the policy file leaves it",
        description="Show every signal: what it makes of a GPU, from which threshold on, and what takes it back.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_SIGNALS_EPILOG,
    )
    table.add_argument("--policy", type=Path, metavar="FILE", help="the policy file (default: none)")
    add_output(table)
    table.set_defaults(leaf=table)


def run(args: argparse.Namespace) -> int:
    """Runs the operation. StateError, TryAgain or StartError says why it cannot."""
    if args.op == "signals":
        policy = read_policy(args.policy) if args.policy else DEFAULT_POLICY
        print(render_signals(policy.health, as_json=args.output == "json"))
        return 0
    state_dir = get_state_dir(args)
    roster_store = RosterStore(state_dir)
    if not roster_store.path.exists():
        raise StateError(
            f"{roster_store.path} does not exist: no driver ever ran here, or --plugins-dir is another folder"
        )
    roster, store = roster_store.read_roster(), HealthStore(state_dir)
    if args.op == "list":
        known = None if args.gpu is None else _find(roster, args.gpu)
        print(_render(store.read_health(), roster, known, as_json=args.output == "json"))
        return 0
    return _clear(args, _find(roster, args.gpu), store, FileLocks(state_dir))


def _clear(args: argparse.Namespace, known: KnownGpu, store: HealthStore, locks: FileLocks) -> int:
    reason = parse_reason(args)
    with hold(locks.health_lock(), _LOCK_TIMEOUT_S, "the health of the GPUs"):
        before = store.read_health()
        after = plan_clear(before, known.gpu.uuid, args.signal, reason=reason, who=get_user(), now_s=int(time.time()))
        store.write_health(after)
    taken = [one for one in before.findings if one not in after.findings]
    for finding in taken:
        print(f"cleared {_name_place(known, finding.placement)} {finding.signal}: {finding.message}{_warn(finding)}")
    print("the driver takes note within seconds")
    return 0


def _warn(finding: Finding) -> str:
    row = DEFAULT_HEALTH_POLICY.find(finding.signal)
    if row is None or row.counted is not Counted.STATE:
        return ""
    return "; it comes back while NVML or the driver still finds it so"


def _find(roster: Roster, gpu: str) -> KnownGpu:
    known = next((one for one in roster.gpus if gpu in {one.gpu.uuid, one.name}), None)
    if known is None:
        names = ", ".join(f"{one.name} ({one.gpu.uuid})" for one in roster.gpus) or "none"
        raise StateError(f"this node knows no GPU {gpu!r}; it knows: {names}")
    return known


def _render(health: NodeHealth, roster: Roster, only: KnownGpu | None, *, as_json: bool) -> str:
    gpus = [_render_gpu(health, known) for known in roster.gpus if only in {None, known}]
    if as_json:
        return json.dumps({"gpus": gpus}, indent=2)
    return "\n".join(line for gpu in gpus for line in _list_lines(gpu))


def _render_gpu(health: NodeHealth, known: KnownGpu) -> dict[str, Any]:
    uuid = known.gpu.uuid
    states = [one.state for one in health.findings if one.gpu_uuid == uuid]
    if not known.present:
        states.append(HealthState.GONE)
    return {
        "name": known.name,
        "uuid": uuid,
        "product": known.gpu.product_name,
        "state": max(states, key=lambda one: one.severity, default=HealthState.HEALTHY).value,
        "findings": [_render_finding(known, one) for one in health.find_all(uuid)],
        "cleared": [_render_clearance(known, one) for one in health.clearances if one.gpu_uuid == uuid],
    }


def _render_finding(known: KnownGpu, finding: Finding) -> dict[str, Any]:
    return {
        "place": _name_place(known, finding.placement),
        "placement": _render_placement(finding.placement),
        "signal": finding.signal,
        "state": finding.state.value,
        "message": finding.message,
        "taint": None
        if finding.state is HealthState.HEALTHY
        else f"{finding.taint_key}={finding.reason}:{finding.effect}",
        "recovery": finding.evidence.value,
        "count": finding.count,
        "since": render_time(finding.since_s),
        "last": render_time(finding.last_s),
    }


def _render_clearance(known: KnownGpu, one: Clearance) -> dict[str, Any]:
    return {
        "place": _name_place(known, one.placement),
        "placement": _render_placement(one.placement),
        "signal": one.signal,
        "who": one.who,
        "reason": one.reason,
        "at": render_time(one.at_s),
    }


def _list_lines(gpu: dict[str, Any]) -> list[str]:
    lines = [f"{gpu['name']} {gpu['uuid']} {gpu['product']}: {gpu['state']}"]
    for one in gpu["findings"]:
        state = "counted" if one["state"] == HealthState.HEALTHY else one["state"]
        times = f" ({one['count']} times, last {one['last']})" if one["count"] > 1 else ""
        lines.append(f"  {state} {one['place']} {one['signal']} since {one['since']}{times}: {one['message']}")
        if one["taint"]:
            lines.append(f"    taint {one['taint']}, until {_UNTIL[one['recovery']]}")
    lines.extend(
        f"  cleared {one['place']} {one['signal']} at {one['at']} by {one['who']}: {one['reason']}"
        for one in gpu["cleared"]
    )
    return lines


_UNTIL: Final = {
    "reading": "it reads clear",
    "reset": "the GPU is reset",
    "boot": "the node is rebooted",
    "person": "somebody runs tesela health clear",
}


def _render_placement(placement: Placement | None) -> dict[str, int] | None:
    """In memory slices; null for the whole GPU."""
    return None if placement is None else {"start": placement.start, "size": placement.size}


def _name_place(known: KnownGpu, placement: Placement | None) -> str:
    if placement is None:
        return known.name
    if placement.size == 1:
        return f"{known.name} slice {placement.start}"
    return f"{known.name} slices {placement.start}-{placement.start + placement.size - 1}"
