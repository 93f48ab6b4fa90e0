"""`tesela bundle`: one archive of what explains a node's GPUs, for whoever is to help. It changes nothing.

It works where the driver does not: every part is had or missed by itself, within a bound, and `manifest.json` says
which, and why. Run it where the driver runs.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from tesela import __version__
from tesela.cli.bundle_nvml import collect_nvml
from tesela.cli.bundle_parts import (
    Part,
    Places,
    attempt,
    collect_about,
    collect_api,
    collect_cdi,
    collect_locks,
    collect_logs,
    collect_metrics,
    collect_state,
)
from tesela.cli.node_arguments import add_driver_root_mount, add_plugins_dir, get_state_dir
from tesela.core.errors import StateError
from tesela.edge.backends import open_nvml
from tesela.edge.kube.port import Kube
from tesela.edge.kube.times import render_time
from tesela.edge.store.files import write_file
from tesela.plugin.side_by_side import run_side_by_side

_LONGEST_S: Final = 600.0
_CALL_S: Final = 5.0
_EPILOG: Final = """\
Run it where the driver runs: in its pod on that node, or on the node as the driver's user.

Left out: tokens and what looks like one, managed fields, annotations of others (such as last-applied-configuration),
parameters addressed to other drivers, and every environment variable but the driver's own. Read the archive before you
pass it on: logs are other people's text.

exit codes:
  0    written; manifest.json in it says what could not be had, and why
  1    not written; one line on stderr says why
  2    wrong usage

examples:
  kubectl exec -n NAMESPACE POD -- tesela bundle -o - > bundle.tar.gz
  kubectl logs -n NAMESPACE POD > driver.log; tesela bundle --kubeconfig admin.conf --log driver.log"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares where to write and where to look."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "-o",
        dest="output",
        metavar="FILE",
        help="archive to write, - for stdout (default: tesela-bundle-NODE-TIME.tar.gz)",
    )
    parser.add_argument(
        "--log", type=Path, action="append", default=[], metavar="FILE", help="a log to put in; may be given again"
    )
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="seconds to wait for all that is asked (default 30)"
    )
    where = parser.add_argument_group("where to look, as given to tesela plugin")
    where.add_argument("--node-name", default=os.environ.get("NODE_NAME", ""), help="env NODE_NAME")
    where.add_argument("--kubeconfig", default=os.environ.get("KUBECONFIG", ""), help="env KUBECONFIG; never put in")
    where.add_argument("--nvml", default=os.environ.get("TESELA_NVML", "real"), help="env TESELA_NVML (default real)")
    where.add_argument("--metrics-port", default=os.environ.get("TESELA_METRICS_PORT", ""), metavar="PORT")
    where.add_argument("--metrics-address", default=os.environ.get("TESELA_METRICS_ADDRESS", ""), metavar="IP")
    add_plugins_dir(where)
    add_driver_root_mount(where)
    where.add_argument("--cdi-dir", type=Path, default=Path("/var/run/cdi"), metavar="DIR", help="%(default)s")
    where.add_argument("--proc-root", type=Path, default=Path("/proc"), metavar="DIR", help="%(default)s")


def run(args: argparse.Namespace) -> int:
    """Collects, writes, and says what is missing."""
    if not 0 < args.timeout <= _LONGEST_S:
        raise StateError(f"--timeout is {args.timeout:g}: give seconds, above 0, at most {_LONGEST_S:.0f}")
    if args.output == "-" and sys.stdout.isatty():
        raise StateError("an archive is nothing for a terminal: redirect stdout, or give -o a file")
    if args.output and not Path(args.output).absolute().parent.is_dir():
        raise StateError(f"{Path(args.output).parent} is no folder: make it, or give -o another file")
    created_s = time.time()
    name = _render_name(args.node_name, created_s)
    print(f"collecting, for {args.timeout:g} s at most", file=sys.stderr)
    files, missing = collect(args)
    archive = pack(name, files, missing, created_s=created_s)
    if args.output == "-":
        sys.stdout.buffer.write(archive)
        sys.stdout.buffer.flush()
    else:
        path = Path(args.output or f"{name}.tar.gz")
        write_file(path, archive, mode=0o600, synced=False)
        print(f"{path}: {len(files) + 1} files, {len(archive) / 1024:.0f} KiB", file=sys.stderr)
    for what, why in missing.items():
        print(f"not in it: {what}: {why}", file=sys.stderr)
    return 0


def collect(args: argparse.Namespace) -> tuple[Mapping[str, bytes], Mapping[str, str]]:
    """Files by path, and what could not be had, with the reason. All parts side by side, within the timeout."""
    places = Places(
        state_dir=get_state_dir(args),
        cdi_dir=args.cdi_dir,
        proc_root=args.proc_root,
        node_name=args.node_name,
        logs=tuple(args.log),
        metrics_url=render_metrics_url(args.metrics_address, args.metrics_port),
    )
    nvml = partial(
        collect_nvml,
        places.state_dir,
        partial(open_nvml, args.nvml, args.driver_root_mount or Path("/")),
        call_timeout_s=min(_CALL_S, args.timeout / 2),
        timeout_s=args.timeout / 2,
    )
    parts: dict[str, Callable[[], Part]] = {
        "about": partial(collect_about, places),
        "state": partial(collect_state, places),
        "cdi": partial(collect_cdi, places),
        "locks": partial(collect_locks, places),
        "nvml": nvml,
        "api": partial(collect_api, places, partial(_open_kube, args.kubeconfig)),
        "metrics": partial(collect_metrics, places),
        "logs": partial(collect_logs, places),
    }
    jobs = {part: partial(attempt, part, ask) for part, ask in parts.items()}
    found = run_side_by_side(jobs, timeout_s=args.timeout, name="bundle")
    files = {path: data for part in parts if part in found for path, data in found[part].files.items()}
    missing = {what: why for part in parts if part in found for what, why in found[part].missing.items()}
    late = {part: f"it did not answer within {args.timeout:g} s" for part in parts if part not in found}
    return files, missing | late


def pack(name: str, files: Mapping[str, bytes], missing: Mapping[str, str], *, created_s: float) -> bytes:
    """A gzipped tar archive of one folder `name`; the manifest comes first."""
    manifest = {
        "bundle": 1,
        "tesela": __version__,
        "created": render_time(created_s),
        "files": {path: len(data) for path, data in sorted(files.items())},
        "missing": dict(sorted(missing.items())),
    }
    rendered = json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, data in {"manifest.json": rendered, **dict(sorted(files.items()))}.items():
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mtime, entry.mode = len(data), int(created_s), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _render_name(node_name: str, created_s: float) -> str:
    node = f"{node_name}-" if node_name else ""
    return f"tesela-bundle-{node}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(created_s))}"


def render_metrics_url(address: str, port: str) -> str:
    """Where the driver on this node serves its metrics; "" without a port."""
    host = f"[{address}]" if ":" in address else address or "127.0.0.1"
    return f"http://{host}:{port}/metrics" if port else ""


def _open_kube(kubeconfig: str) -> Kube:
    from tesela.edge.kube.client import KubeClient  # noqa: PLC0415 -- tens of megabytes, in the thread that needs it
    from tesela.edge.kube.config import load_config  # noqa: PLC0415 -- likewise

    return KubeClient(load_config(kubeconfig or None))
