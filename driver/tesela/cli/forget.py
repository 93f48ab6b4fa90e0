"""`tesela forget`: drops a GPU that is gone for good from this node's roster, so that it is no longer published.

Run it on the node, as the user of the driver: it works on the driver's own folder. The running driver notices at its
next look at the machine.
"""

from __future__ import annotations

import argparse
from typing import Final

from tesela.cli.node_arguments import add_plugins_dir, get_state_dir
from tesela.core.errors import StateError
from tesela.core.roster import plan_forget
from tesela.edge.store.locks import FileLocks, hold
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore

_LOCK_TIMEOUT_S: Final = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the GPU to forget and where the driver keeps its state."""
    parser.epilog = (
        "A GPU that was seen once stays published, tainted gpu.nvidia.com/gone, until it is forgotten. A GPU that is\n"
        "present, or that a claim holds, is refused. Run it where the driver runs: in its pod on that node, or on the\n"
        "node as the driver's user.\n\nexamples:\n"
        "  kubectl exec -n NAMESPACE POD -- tesela forget gpu-3\n"
        "  tesela forget GPU-5b1d6f0e-0000-4000-8000-000000000003"
    )
    parser.add_argument("gpu", metavar="GPU", help="its UUID, or gpu-N as in its device names")
    add_plugins_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Forgets the GPU. StateError or TryAgain says why not."""
    state_dir = get_state_dir(args)
    store, records = RosterStore(state_dir), RecordStore(state_dir)
    if not store.path.exists():
        raise StateError(f"{store.path} does not exist: no driver ever ran here, or --plugins-dir is another folder")
    with hold(FileLocks(state_dir).roster_lock(), _LOCK_TIMEOUT_S, "the roster of GPUs"):
        listing = records.list()
        if listing.unreadable:
            paths = ", ".join(str(one.path) for one in listing.unreadable)
            raise StateError(
                f"a claim may hold {args.gpu}, and these records are unreadable: {paths}; restart the driver, which "
                "rebuilds them, then try again"
            )
        store.write_roster(plan_forget(store.read_roster(), listing.records, args.gpu))
    print(f"{args.gpu} is forgotten; its devices leave the ResourceSlices at the driver's next look")
    return 0
