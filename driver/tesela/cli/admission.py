"""`tesela admission`: the optional webhook. Flags first, environment second; the Deployment sets the environment."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from tesela.cli.program_arguments import add_log_arguments, check_log_arguments, parse_port
from tesela.edge.telemetry.logs import LogFormat

_EPILOG: Final = """\
It answers AdmissionReviews of ResourceClaims, ResourceClaimTemplates and DeviceClasses whose opaque configs are for
gpu.nvidia.com, at https://ADDRESS:PORT/validate-configs; /healthz and /readyz are there too. docs/admission.md says
what it refuses that the policy of daemonset/base/permissions cannot.

exit codes:
  0    stopped by SIGTERM or SIGINT
  1    cannot start: one line on stderr says what to do
  2    wrong usage

example:
  tesela admission --tls-cert-file tls.crt --tls-private-key-file tls.key --kubeconfig admin.conf
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `tesela admission`."""
    parser.epilog = _EPILOG
    folder = Path("/etc/tesela-admission/tls")
    parser.add_argument(
        "--tls-cert-file",
        type=Path,
        default=folder / "tls.crt",
        metavar="FILE",
        help="certificate chain, read again when it is renewed (%(default)s)",
    )
    parser.add_argument(
        "--tls-private-key-file", type=Path, default=folder / "tls.key", metavar="FILE", help="its key (%(default)s)"
    )
    parser.add_argument("--port", default="9443", help="%(default)s")
    parser.add_argument("--address", default="", metavar="IP", help="on this address alone (default: on every one)")
    parser.add_argument(
        "--kubeconfig",
        default=os.environ.get("KUBECONFIG", ""),
        help="kubeconfig file (env KUBECONFIG; default: the pod's ServiceAccount)",
    )
    add_log_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal. StartError: a setting that cannot work."""
    port = parse_port("--port", args.port)
    check_log_arguments(args)
    from tesela.admission.main import AdmissionConfig, run_admission  # noqa: PLC0415 -- usage errors must not wait

    return run_admission(
        AdmissionConfig(
            certificate=args.tls_cert_file,
            key=args.tls_private_key_file,
            port=port,
            address=args.address,
            kubeconfig=args.kubeconfig or None,
            log_format=LogFormat(args.log_format),
            log_level=args.log_level,
        )
    )
