"""The operations of `tesela sim` on a running simulator, and their arguments: names are the fields of the request."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tesela.cli.sim_output import show
from tesela.edge.nvml import codes
from tesela.edge.simulator.fault_names import ASKED_AS, list_functions
from tesela.edge.simulator.named import UNSIMULATED

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 - argparse names no public type

EXIT_CODES: Final = """\
exit codes:
  0  done
  1  the simulator refused, or the answer cannot be written
  2  wrong usage, or it cannot start
  3  no simulator answers at the socket, or it does no longer"""
_FUNCTION: Final = "NVML's name in any version, as in nvmlDeviceGetName; * for any; `tesela sim fail --list` has all"
_RECOVERY_ACTIONS: Final = ", ".join(f"{number} {name}" for number, name in codes.RECOVERY_ACTIONS.items())


_COUNTED: Final = {
    "ecc": ("corrected", "uncorrected", "mode"),
    "remap": ("correctable", "uncorrectable", "pending", "failure"),
}
"""Operations that do nothing unless one of these flags says what."""


def add_operations(operations: Subparsers) -> Iterator[argparse.ArgumentParser]:
    """Declares every operation but `serve`, in the order of a look, a load, a fault, a loss; yields their parsers."""
    does = "show GPUs, instances, processes, health, faults, and the calls that these hold up"
    status = _operation(operations, "status", does, "tesela sim status --watch")
    status.add_argument("--watch", action="store_true", help="the MIG map, drawn again at each change, until Ctrl-C")
    yield status
    yield from _process_operations(operations)
    yield from _misbehaviour_operations(operations)
    yield from _gpu_operations(operations)
    yield from _health_operations(operations)
    yield from _rare_operations(operations)


def check_usage(args: argparse.Namespace) -> str | None:
    """What is wrong with the arguments together, which argparse cannot tell; None if nothing is."""
    if args.op == "status" and args.watch and args.output == "json":
        return "--watch shows a map; for a program, ask for `-o json` again and again"
    if args.op == "busy" and args.pid is None and args.real:
        return "--real needs a PID; without a PID this command itself is the process"
    if args.op in {"busy", "xid"} and args.ci is not None and args.gi is None:
        return "--ci needs --gi: a compute instance's id counts within its GPU instance"
    flags = _COUNTED.get(args.op, ())
    if flags and not any(getattr(args, flag) for flag in flags):
        return f"nothing to do; give one of {', '.join(f'--{flag}' for flag in flags)}"
    return None


class _ListNames(argparse.Action):
    """`--list`: prints what `fail` takes and ends, as `--help` does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.exit(show(render_names()))


def render_names() -> str:
    """The functions that may be made to misbehave, and the return codes."""
    others = (f"{name} (as {asked})" for name, asked in sorted(ASKED_AS.items()))
    sections = {
        "functions, each in whatever version a program calls": list_functions(),
        "other names": others,
        "functions that nobody simulates, FUNCTION_NOT_FOUND until made to fail otherwise": sorted(UNSIMULATED),
        "return codes": (f"{number} {name}" for name, number in codes.RETURN_CODES.items()),
    }
    return "\n\n".join("\n  ".join((f"{title}:", *names)) for title, names in sections.items())


def _misbehaviour_operations(operations: Subparsers) -> Iterator[argparse.ArgumentParser]:
    fail = _operation(
        operations, "fail", "make an NVML function fail", "tesela sim fail nvmlGpuInstanceDestroy IN_USE --times 3"
    )
    fail.add_argument("--list", action=_ListNames, nargs=0, help="list all functions and return codes, and end")
    fail.add_argument("function", metavar="FUNCTION", help=_FUNCTION)
    what = fail.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "code", metavar="CODE", nargs="?", type=_code, help="a return code by name or number, as in IN_USE or 19"
    )
    what.add_argument(
        "--activation-status",
        dest="activation_status",
        type=_code,
        metavar="CODE",
        help="nvmlDeviceSetMigMode succeeds with this status and changes the pending mode only",
    )
    fail.add_argument("--when", choices=("before", "after"), help="fail without or with the effect (default: before)")
    _add_counts(fail, times="1")
    yield fail

    does = "make an NVML function slow, until `tesela sim release`"
    slow = _operation(operations, "slow", does, "tesela sim slow nvmlGpuInstanceDestroy 1.5")
    slow.add_argument("function", metavar="FUNCTION", help=_FUNCTION)
    slow.add_argument("seconds", metavar="SECONDS", type=float, help="that each call takes longer")
    _add_counts(slow, times="all")
    yield slow

    does = "make an NVML function not return, until `tesela sim release`"
    hang = _operation(operations, "hang", does, "tesela sim hang nvmlDeviceGetMigMode")
    hang.add_argument("function", metavar="FUNCTION", help=_FUNCTION)
    _add_counts(hang, times="1")
    yield hang
    yield _operation(
        operations, "release", "forget all faults and latencies, and let the calls that they hold up go on"
    )


def _process_operations(operations: Subparsers) -> Iterator[argparse.ArgumentParser]:
    busy = _gpu_operation(
        operations,
        "busy",
        "open a process on a GPU or an instance",
        "tesela sim busy 0 4711 --gi 13\n  tesela sim busy 0 $$ --real --memory-mib 2048\n  tesela sim busy 0",
    )
    busy.add_argument(
        "pid", metavar="PID", type=int, nargs="?", help="left out: this command is the process, until Ctrl-C"
    )
    busy.add_argument("--real", action="store_true", help="the process exists, and leaves the GPU when it ends")
    busy.add_argument("--gi", type=int, metavar="ID", help="in this GPU instance (`tesela sim status` has the ids)")
    busy.add_argument("--ci", type=int, metavar="ID", help="in this compute instance of it")
    busy.add_argument(
        "--kind", choices=("compute", "graphics", "open"), help="open: holds the device file, NVML does not list it"
    )
    busy.add_argument("--name", help="the process's name (default: a real one's own)")
    busy.add_argument("--memory-mib", dest="memory_mib", type=int, metavar="N", help="GPU memory that it holds")
    yield busy

    idle = _gpu_operation(operations, "idle", "end a process on a GPU", "tesela sim idle 0 4711")
    idle.add_argument("pid", metavar="PID", type=int, help="as `tesela sim status` shows it")
    yield idle


def _gpu_operations(operations: Subparsers) -> Iterator[argparse.ArgumentParser]:
    lose = _gpu_operation(operations, "lose", "a GPU falls off the bus", "tesela sim lose 1")
    lose.add_argument("--absent", action="store_true", help="NVML does not know it any more")
    yield lose

    reset = _gpu_operation(operations, "reset", "reset a GPU, a lost one too", "tesela sim reset 1")
    reset.add_argument("--force", action="store_true", help="also with processes on it")
    yield reset

    reboot = _operation(operations, "reboot", "restart the node, or its driver", "tesela sim reboot --driver-only")
    reboot.add_argument("--driver-only", dest="driver_only", action="store_true", help="the boot id stays")
    yield reboot

    does = "load the kernel module anew, as an upgrade does"
    reload = _operation(operations, "reload", does, "tesela sim reload --driver 590.44.01")
    reload.add_argument("--driver", metavar="VERSION", help="the version from now on (default: the same)")
    yield reload


def _health_operations(operations: Subparsers) -> Iterator[argparse.ArgumentParser]:
    xid = _gpu_operation(operations, "xid", "the driver reports an Xid", "tesela sim xid 0 94 --gi 13 --ci 0")
    xid.add_argument("xid", metavar="XID", type=int, help="its number in NVIDIA's catalogue, as in 79")
    xid.add_argument("--gi", type=int, help="attributed to this GPU instance")
    xid.add_argument("--ci", type=int, help="attributed to this compute instance of it")
    yield xid

    ecc = _gpu_operation(operations, "ecc", "memory errors, or the ECC mode", "tesela sim ecc 0 --uncorrected 1")
    ecc.add_argument("--corrected", type=int, metavar="N", help="N single-bit errors more")
    ecc.add_argument("--uncorrected", type=int, metavar="N", help="N double-bit errors more")
    ecc.add_argument("--sram", action="store_true", help="in SRAM, not in DRAM")
    ecc.add_argument(
        "--volatile-only", dest="volatile_only", action="store_true", help="not in the counts of the GPU's life"
    )
    ecc.add_argument("--mode", choices=("on", "off"), help="the ECC mode from the next reset on")
    yield ecc

    remap = _gpu_operation(
        operations, "remap", "memory rows are remapped", "tesela sim remap 0 --uncorrectable 1 --pending"
    )
    remap.add_argument("--correctable", type=int, metavar="N", help="N rows more, for correctable errors")
    remap.add_argument("--uncorrectable", type=int, metavar="N", help="N rows more, for uncorrectable errors")
    remap.add_argument("--pending", action="store_true", help="from the next reset on")
    remap.add_argument("--failure", action="store_true", help="a remapping failed: the board is to be replaced")
    yield remap

    recovery = _gpu_operation(
        operations, "recovery-action", "what NVML says must be done", "tesela sim recovery-action 0 GPU_RESET"
    )
    recovery.add_argument(
        "action", metavar="ACTION", type=_recovery_action, help="by name or number: " + _RECOVERY_ACTIONS
    )
    yield recovery


def _rare_operations(operations: Subparsers) -> Iterator[argparse.ArgumentParser]:
    next_gi = _gpu_operation(operations, "next-gi-id", "choose the next GPU instance's id", "tesela sim next-gi-id 0 7")
    next_gi.add_argument("gi", type=int)
    yield next_gi

    fabric = _gpu_operation(operations, "fabric", "set what NVML says of the fabric", "tesela sim fabric 0 2")
    fabric.add_argument("state", type=int, help="0 not supported, 1 not started, 2 in progress, 3 completed")
    fabric.add_argument("--cluster-uuid", dest="cluster_uuid")
    fabric.add_argument("--clique-id", dest="clique_id", type=int)
    fabric.add_argument("--status", type=int, help="NVML's code of how it completed (default: 0, success)")
    yield fabric


def _operation(operations: Subparsers, name: str, does: str, example: str = "") -> argparse.ArgumentParser:
    return operations.add_parser(
        name,
        help=does,
        description=does,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"{EXIT_CODES}\n\nexample:\n  {example or f'tesela sim {name}'}",
    )


def _gpu_operation(operations: Subparsers, name: str, does: str, example: str) -> argparse.ArgumentParser:
    parser = _operation(operations, name, does, example)
    parser.add_argument("gpu", metavar="GPU", help="UUID, or index in PCI order")
    return parser


def _add_counts(parser: argparse.ArgumentParser, *, times: str) -> None:
    parser.add_argument("--gpu", help="on this GPU only (UUID or index)")
    parser.add_argument("--after", type=int, metavar="N", help="let N calls pass first")
    parser.add_argument("--times", type=int, metavar="N", help=f"for N calls (default: {times})")
    if times != "all":
        parser.add_argument("--forever", action="store_true", help="for all calls")


def _code(text: str) -> int:
    if text.isdecimal():
        return int(text)
    name = text.upper().removeprefix("NVML_").removeprefix("ERROR_")
    if name not in codes.RETURN_CODES:
        close = ", ".join(difflib.get_close_matches(name, codes.RETURN_CODES, n=3, cutoff=0.0))
        problem = f"{text!r} is no return code; close to it are {close}; `tesela sim fail --list` has all"
        raise argparse.ArgumentTypeError(problem)
    return codes.RETURN_CODES[name]


def _recovery_action(text: str) -> int:
    by_name = {name: number for number, name in codes.RECOVERY_ACTIONS.items()}
    name = text.upper().replace("-", "_").removeprefix("NVML_GPU_RECOVERY_ACTION_")
    if not text.isdecimal() and name not in by_name:
        raise argparse.ArgumentTypeError(f"{text!r} is no recovery action; known are {_RECOVERY_ACTIONS}")
    return int(text) if text.isdecimal() else by_name[name]
