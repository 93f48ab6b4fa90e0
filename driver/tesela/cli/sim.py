"""`tesela sim`: runs simulated GPUs as a process of their own, and acts on them as hardware and operators would."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any, Final

from tesela.cli.sim_arguments import EXIT_CODES, add_operations, check_usage
from tesela.cli.sim_hold import hold_gpu
from tesela.cli.sim_output import EXIT_REFUSED, say, show
from tesela.cli.sim_status import render_status
from tesela.cli.sim_stop import stop_on_signals
from tesela.core.errors import DocumentError, NvmlError, StartError
from tesela.edge.simulator.admin import SimulatorAdmin
from tesela.edge.simulator.hosttree import HostTree
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.models import list_models
from tesela.edge.simulator.server import SimulatorServer

EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
SOCKET_VARIABLE: Final = "TESELA_SIM_SOCKET"
DEFAULT_SOCKET: Final = Path("/run/tesela/sim.sock")
"""Where the C library looks too."""
_SERVE: Final = f"""\
run simulated GPUs until SIGTERM

MACHINE is MODEL[:OPTION...][*COUNT], joined by commas, as in a100-40gb:mig*2,h100-80gb.
models: {", ".join(list_models())}
options of a GPU:
  mig             MIG mode is on at the start
  fabric          behind NVSwitches, in their fabric (Hopper)
  vgpu            a vGPU in a guest, from where MIG cannot be managed
  numa=N          on this NUMA node; numa=unknown hides it
  pcie-root=ROOT  below this PCIe root, as in pci0000-64; pcie-root=unknown hides it
of the machine:
  seed=N          other UUIDs
  driver=VERSION  the driver's version, as in 580.95.05
  shift-minors    a MIG toggle or a reboot moves device minors"""
_OF_A_GPU: Final = {"gpus", "model"}
_NOT_SENT: Final = {"output", "socket"}
"""What is for this command; every other argument of an operation is a field of its request."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares `tesela sim serve` and the operations on a running simulator."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"{EXIT_CODES}\n\nexample:\n  tesela sim serve --gpus a100-40gb:mig*2"
    operations = parser.add_subparsers(dest="op", required=True, metavar="OPERATION")
    serve = operations.add_parser(
        "serve",
        help="run simulated GPUs until SIGTERM",
        description=_SERVE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"{EXIT_CODES}\n\nexample:\n"
        "  tesela sim serve --gpus a100-40gb:mig*2 --socket /tmp/sim.sock --host-root /tmp/host\n"
        "  tesela plugin --nvml simulated:unix:/tmp/sim.sock --proc-root /tmp/host/proc ...",
    )
    serve.add_argument("--gpus", required=True, metavar="MACHINE", help="as in a100-40gb*4,h100-80gb:mig*2,seed=7")
    serve.add_argument("--host-root", type=Path, metavar="DIR", help="keep a stand-in /proc, /sys and /dev below DIR")
    _finish(serve)
    for operation in add_operations(operations):
        operation.add_argument("-o", dest="output", choices=("text", "json"), default="text", help="output format")
        _finish(operation)


def run(args: argparse.Namespace) -> int:
    """Runs the operation; `sim_arguments` has the exit codes."""
    if args.op == "serve":
        return _serve(args)
    wrong = check_usage(args)
    if wrong is not None:
        return say(wrong, EXIT_USAGE)
    admin = SimulatorAdmin(args.socket)
    try:
        answer = _perform(args, admin)
    except DocumentError as error:
        return say(_in_words_of_usage(str(error), args), EXIT_REFUSED)
    except NvmlError as error:
        return say(error.text, EXIT_UNREACHABLE)
    finally:
        admin.close()
    return show(_render(args, answer)) if answer is not None else 0


def _render(args: argparse.Namespace, answer: dict[str, Any]) -> str:
    if args.output == "json":
        return json.dumps(answer, indent=2)
    return render_status(answer) if args.op == "status" else ""


def _perform(args: argparse.Namespace, admin: SimulatorAdmin) -> dict[str, Any] | None:
    """The answer, or None where the operation stayed in the foreground and has shown everything."""
    if args.op == "status" and args.watch:
        from rich.console import Console  # noqa: PLC0415 - costs every other operation its start-up time

        from tesela.cli.sim_watch import watch_status  # noqa: PLC0415 - likewise

        watch_status(admin, Console())
        return None
    if args.op == "busy" and args.pid is None:
        hold_gpu(admin, _document(args), as_json=args.output == "json")
        return None
    return admin.send(_document(args))


def _serve(args: argparse.Namespace) -> int:
    try:
        machine = build_machine(args.gpus)
        if args.socket == DEFAULT_SOCKET:
            args.socket.parent.mkdir(exist_ok=True)
        if args.host_root is not None:
            HostTree(args.host_root, machine)
        server = SimulatorServer(machine, args.socket)
        stop = stop_on_signals()
        server.start()
    except DocumentError as error:
        return say(f"--gpus {args.gpus}: {error if error.path not in _OF_A_GPU else error.problem}", EXIT_USAGE)
    except (StartError, OSError) as error:
        return say(str(error), EXIT_USAGE)
    print(f"serving {len(machine.spec.gpus)} simulated GPUs at {args.socket}", flush=True)
    stop.wait()
    server.stop()
    return 0


def _document(args: argparse.Namespace) -> dict[str, Any]:
    fields = {name: getattr(args, name, None) for name in args.spelled if name not in _NOT_SENT}
    # A flag that was not given says nothing; an operation refuses fields it does not know.
    return {"op": args.op} | {name: v for name, v in fields.items() if v is not None and v is not False}


def _finish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--socket",
        type=Path,
        default=Path(os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET),
        metavar="PATH",
        help=f"the simulator's Unix socket (default: ${SOCKET_VARIABLE}, else {DEFAULT_SOCKET})",
    )
    actions = parser._actions  # noqa: SLF001 - argparse has no other list of what was declared
    spelled = {a.dest: a.option_strings[-1] if a.option_strings else a.dest.upper() for a in actions}
    parser.set_defaults(leaf=parser, spelled=spelled)


def _in_words_of_usage(problem: str, args: argparse.Namespace) -> str:
    """The simulator blames a field of the request; whoever typed the command knows it by its flag."""
    field, colon, rest = problem.partition(": ")
    return f"{args.spelled[field]}{colon}{rest}" if colon and field in args.spelled else problem
