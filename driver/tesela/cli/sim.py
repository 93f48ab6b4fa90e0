"""`tesela sim`: runs simulated GPUs as a process of their own, and acts on them as hardware and operators would.

Exit codes: 0 done; 1 the simulator refused; 2 wrong usage or it cannot start; 3 no simulator answers at the socket.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final

from tesela.cli.sim_arguments import add_operations, check_usage
from tesela.cli.sim_hold import hold_gpu
from tesela.cli.sim_status import render_status
from tesela.core.errors import DocumentError, NvmlError, StartError
from tesela.edge.simulator.admin import SimulatorAdmin
from tesela.edge.simulator.hosttree import HostTree
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.server import SimulatorServer

EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
SOCKET_VARIABLE: Final = "TESELA_SIM_SOCKET"
_FIELDS: Final = (
    *("function", "code", "activation_status", "when", "after", "times", "forever", "seconds"),
    *("gpu", "pid", "gi", "ci", "kind", "name", "absent", "force", "driver_only", "state", "cluster_uuid", "clique_id"),
    *("real", "memory_mib", "xid", "mode", "corrected", "uncorrected", "sram", "volatile_only"),
    *("correctable", "uncorrectable", "pending", "failure", "action"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares `tesela sim serve` and the operations on a running simulator."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = __doc__
    operations = parser.add_subparsers(dest="op", required=True, metavar="OPERATION")
    serve = operations.add_parser(
        "serve",
        help="run simulated GPUs until SIGTERM",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  tesela sim serve --gpus a100-40gb:mig*2 --socket /tmp/sim.sock --host-root /tmp/host\n"
        "  tesela plugin --nvml simulated:unix:/tmp/sim.sock --proc-root /tmp/host/proc ...",
    )
    serve.add_argument("--gpus", required=True, metavar="MACHINE", help="as in a100-40gb*4,h100-80gb:mig*2,seed=7")
    serve.add_argument("--host-root", type=Path, metavar="DIR", help="keep a stand-in /proc, /sys and /dev below DIR")
    _add_socket(serve)
    for operation in add_operations(operations):
        _add_socket(operation)
        operation.add_argument("-o", dest="output", choices=("text", "json"), default="text", help="output format")


def run(args: argparse.Namespace) -> int:
    """Runs the operation; the module's docstring has the exit codes."""
    if args.socket is None:
        return _say(f"no socket: give --socket PATH or set {SOCKET_VARIABLE}", EXIT_USAGE)
    if args.op == "serve":
        return _serve(args)
    wrong = check_usage(args)
    if wrong is not None:
        return _say(wrong, EXIT_USAGE)
    admin = SimulatorAdmin(args.socket)
    try:
        answer = _perform(args, admin)
    except DocumentError as error:
        return _say(str(error), EXIT_REFUSED)
    except NvmlError as error:
        return _say(error.text, EXIT_UNREACHABLE)
    finally:
        admin.close()
    if answer is not None and args.output == "json":
        print(json.dumps(answer, indent=2))
    elif answer is not None and args.op == "status":
        print(render_status(answer))
    return 0


def _perform(args: argparse.Namespace, admin: SimulatorAdmin) -> dict[str, Any] | None:
    """The answer, or None where the operation stayed in the foreground and has shown everything."""
    if args.op == "status" and args.watch:
        from rich.console import Console  # noqa: PLC0415 - costs every other operation its start-up time

        from tesela.cli.sim_watch import watch_status  # noqa: PLC0415 - likewise

        watch_status(admin, Console())
        return None
    if args.op == "busy" and args.pid is None:
        hold_gpu(admin, _document(args))
        return None
    return admin.send(_document(args))


def _serve(args: argparse.Namespace) -> int:
    stop = threading.Event()
    try:
        machine = build_machine(args.gpus)
        if args.host_root is not None:
            HostTree(args.host_root, machine)
        server = SimulatorServer(machine, args.socket)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: stop.set())
        server.start()
    except DocumentError as error:
        return _say(f"--gpus {args.gpus}: {error}", EXIT_USAGE)
    except (StartError, OSError) as error:
        return _say(str(error), EXIT_USAGE)
    print(f"serving {len(machine.spec.gpus)} simulated GPUs at {args.socket}", flush=True)
    stop.wait()
    server.stop()
    return 0


def _document(args: argparse.Namespace) -> dict[str, Any]:
    fields = {name: getattr(args, name, None) for name in _FIELDS}
    # A flag that was not given says nothing; an operation refuses fields it does not know.
    return {"op": args.op} | {name: v for name, v in fields.items() if v is not None and v is not False}


def _add_socket(parser: argparse.ArgumentParser) -> None:
    default = os.environ.get(SOCKET_VARIABLE)
    parser.add_argument(
        "--socket",
        type=Path,
        default=Path(default) if default else None,
        metavar="PATH",
        help=f"the simulator's Unix socket (default: ${SOCKET_VARIABLE})",
    )


def _say(text: str, code: int) -> int:
    print(f"tesela sim: {text}", file=sys.stderr)
    return code
