"""`tesela demo`: the main job on a simulated machine in this process, up to a pod with its MIG partition."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from tesela.core.errors import DocumentError
from tesela.edge.simulator.spec import MachineSpec, parse_machine_spec

DEFAULT_NODE: Final = "a100-40gb*8"
DEFAULT_CLAIMS: Final = 12
MAX_CLAIMS: Final = 128
"""Twice what eight A100s hold as 1g: the rest shows how claims wait."""
EXIT_USAGE: Final = 2

_EPILOG: Final = """\
What runs here is the real node driver: it looks at simulated GPUs, publishes them to a small cluster in this process,
and cuts and frees partitions when the cluster's kubelet asks it to over Unix sockets. Nothing is kept.

exit codes:
  0    done and checked: every partition was given back (also after Ctrl-C ends --watch)
  1    failed; one line on stderr says why and what to do
  2    wrong usage
  130  interrupted, everything cleaned up
  143  terminated by SIGTERM, everything cleaned up

examples:
  tesela demo
  tesela demo --node 'h100-80gb*8' --claims 20
  tesela demo --node 'a30-24gb*2,rtx-pro-6000*2' --watch
  tesela demo -o json | jq '.[] | {step, took_s}'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `tesela demo`."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "--node",
        type=plan_demo_spec,
        default=DEFAULT_NODE,
        metavar="MACHINE",
        help="GPUs of the node, as in a30-24gb*2,h100-80gb*4 (default: %(default)s). Where no part says :mig, GPUs "
        "that need a reset to change their MIG mode begin with it on",
    )
    parser.add_argument(
        "--claims",
        type=_claim_count,
        default=DEFAULT_CLAIMS,
        metavar="N",
        help="claims of mixed profiles beside the bridge (default: %(default)s)",
    )
    parser.add_argument("--watch", action="store_true", help="keep the map live as claims come and go, until Ctrl-C")
    parser.add_argument(
        "-o", dest="output", choices=("text", "json"), default="text", help="json: a list of steps with their facts"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw the map with everything running into FILE")
    parser.add_argument("--no-color", action="store_true", help="no colours (also: the environment's NO_COLOR)")
    parser.add_argument("-v", dest="verbose", action="store_true", help="the driver's log on stderr")


def run(args: argparse.Namespace) -> int:
    """Run the demo; the help text has the exit codes."""
    if args.watch and (args.output == "json" or args.svg is not None):
        print("tesela demo: --watch only draws on the screen: leave it out for -o json or --svg", file=sys.stderr)
        return EXIT_USAGE
    from tesela.cli import demo_run  # noqa: PLC0415 -- usage errors must not wait for gRPC and the cluster to load

    with _terminate_like_interrupt():
        return demo_run.run_demo(demo_run.DemoOptions.from_arguments(args), args.node)


def plan_demo_spec(text: str) -> MachineSpec:
    """The machine of `--node`. ArgumentTypeError: it cannot be built.

    Where no part asks for MIG mode, it is on for GPUs that need a reset to change it: an operator has set them up so.
    Others change it themselves when a claim wants it, and begin with it off.
    """
    try:
        spec = parse_machine_spec(text)
    except DocumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if any(gpu.mig for gpu in spec.gpus):
        return spec
    return replace(spec, gpus=tuple(replace(gpu, mig=not gpu.model.resetless_mig) for gpu in spec.gpus))


def _claim_count(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_CLAIMS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to {MAX_CLAIMS}")
    return int(text)


@contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does, so that the temporary folder goes too."""

    def leave(_number: int, _frame: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
