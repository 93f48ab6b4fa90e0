"""The `tesela` command: finds the verb, imports its file alone, runs it, and turns errors into one line.

A verb is a module `tesela.cli.<verb>`, with `_` for `-`, that has `add_arguments(parser)` and `run(args) -> int`. Only
the named verb is imported, so that `tesela --help` answers at once and a verb that reads a file does not load a
Kubernetes client.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from tesela import __version__
from tesela.core.errors import TeselaError

VERBS: Final[dict[str, str]] = {
    "plugin": "run the node driver: publish this node's GPUs and serve the kubelet",
    "admission": "run the optional webhook that checks opaque configs against requests and DeviceClasses",
    "demo": "the main job on a simulated DGX in this process: no root, no GPU, no cluster",
    "sim": "run or act on the NVML simulator",
    "health": "what is wrong with this node's GPUs, and how to take it back",
    "sweep": "what the last sweep of this node found, repaired and left",
    "adoption": "what the driver took over from NVIDIA's DRA driver on this node, or would take over now",
    "forget": "drop a GPU that is gone for good from this node's roster",
    "release-gpu": "close NVML on this node for a driver upgrade or a GPU reset, and open it again",
    "bundle": "one archive of what explains a node's GPUs, for whoever is to help",
    "uninstall-check": "which claims still need the driver, before it is removed from the cluster or a node",
    "gpu": "take GPUs or devices of the cluster out of service, and back: cordon, drain, uncordon",
}

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

_EPILOG: Final = """\
exit codes:
  0    done
  1    failed; one line on stderr says why and what to do
  2    wrong usage
  130  interrupted

example:
  tesela demo
"""


class _Parser(argparse.ArgumentParser):
    """Wrong usage is one line that says where to look, not the whole usage; parsers of verbs are of this class too."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; wrong usage raises SystemExit(2), as argparse does."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parse(arguments)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away, as `head` does: not worth a traceback.
        sys.stderr.close()
        return EXIT_FAILED
    except TeselaError as error:
        print(f"tesela {args.verb}: {error}", file=sys.stderr)
        return EXIT_FAILED


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="tesela",
        description="A DRA driver for NVIDIA GPUs and MIG partitions.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tesela {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    for verb, summary in VERBS.items():
        verb_parser = verbs.add_parser(
            verb, help=summary, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if verb == named:
            module = importlib.import_module(f"tesela.cli.{verb.replace('-', '_')}")
            verb_parser.set_defaults(leaf=verb_parser)
            module.add_arguments(verb_parser)
            verb_parser.set_defaults(run=module.run)
    args, surplus = parser.parse_known_args(arguments)
    if surplus:
        # The parser that could not use them has the help that they need: that of an operation, where a verb has some.
        args.leaf.error(f"unrecognized arguments: {' '.join(surplus)}")
    return args
