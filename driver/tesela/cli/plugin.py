"""`tesela plugin`: the node driver. Flags first, environment second; the DaemonSet sets the environment."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from tesela.cli.node_arguments import (
    add_adopted_partitions,
    add_driver_root_mount,
    add_plugins_dir,
    get_adopted_partitions,
    get_plugins_dir,
)
from tesela.cli.program_arguments import add_log_arguments, check_log_arguments, parse_port
from tesela.core.dns import is_dns_subdomain
from tesela.core.driver_files import LibraryMode
from tesela.core.errors import StartError
from tesela.edge.telemetry.logs import LogFormat
from tesela.plugin.config import PluginConfig

_LONGEST_S: Final = 7 * 86400.0
_EPILOG: Final = """\
exit codes:
  0    stopped by SIGTERM or SIGINT; the published slices stay
  1    cannot start, or failed later: one line on stderr says what to do
  2    wrong usage

examples:
  tesela plugin --node-name node1 --kubeconfig admin.conf --nvml 'simulated:h100-80gb*8'
  NODE_NAME=node1 POD_UID=... tesela plugin          # in a DaemonSet, on a real GPU node
  tesela plugin --node-name node1 --metrics-port 9400 --log-format json
"""
_HOST_PATHS: Final = (
    "--kubelet-root",
    "--plugins-dir",
    "--registry-dir",
    "--cdi-dir",
    "--driver-root",
    "--dev-root",
)
_SERVED_ELSEWHERE: Final = "simulated:unix:"
_TRACE_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `tesela plugin`."""
    parser.epilog = _EPILOG
    who = parser.add_argument_group("who this is")
    who.add_argument(
        "--node-name",
        default=os.environ.get("NODE_NAME", ""),
        help="name of this node's Node object and of its pool (env NODE_NAME; required)",
    )
    who.add_argument(
        "--pod-uid",
        default=os.environ.get("POD_UID", ""),
        help="UID of this pod: makes the sockets its own, so that an update overlaps (env POD_UID)",
    )
    who.add_argument(
        "--kubeconfig",
        default=os.environ.get("KUBECONFIG", ""),
        help="kubeconfig file (env KUBECONFIG; default: the pod's ServiceAccount)",
    )
    _add_gpus(parser.add_argument_group("GPUs"))
    _add_watching(parser.add_argument_group("who watches it"))
    _add_paths(parser.add_argument_group("paths"))


def _add_gpus(gpus: argparse._ArgumentGroup) -> None:
    gpus.add_argument(
        "--nvml",
        default=os.environ.get("TESELA_NVML", "real"),
        help="real, simulated:a100-40gb*8 or simulated:unix:PATH (env TESELA_NVML; default real)",
    )
    gpus.add_argument(
        "--policy", type=Path, help="policy file: what each GPU offers, and what its health means (default: on demand)"
    )
    gpus.add_argument(
        "--driver-libraries",
        default=os.environ.get("TESELA_DRIVER_LIBRARIES", LibraryMode.AUTO),
        metavar="HOW",
        help="how containers get the GPU driver's libraries: toolkit (as the host's nvidia-ctk says), mount (each by "
        "its SONAME), none, or auto: the first of these that works (env TESELA_DRIVER_LIBRARIES; default auto)",
    )
    gpus.add_argument(
        "--driver-wait", type=float, default=600.0, metavar="S", help="seconds to wait for the GPU driver (default 600)"
    )
    gpus.add_argument(
        "--nvml-timeout",
        type=float,
        default=15.0,
        metavar="S",
        help="seconds after which an NVML call counts as hung (default 15)",
    )
    gpus.add_argument(
        "--beside-device-plugin",
        action="store_true",
        help="offer devices also while NVIDIA's device plugin offers this node's GPUs: what it gave to pods is tainted "
        "within half a minute, what claims have it may give once more (default: every device is tainted)",
    )
    add_adopted_partitions(gpus)


def _add_watching(watching: argparse._ArgumentGroup) -> None:
    watching.add_argument(
        "--metrics-port",
        default=os.environ.get("TESELA_METRICS_PORT", ""),
        metavar="PORT",
        help="serve /metrics, /healthz and /readyz there (env TESELA_METRICS_PORT; default: nowhere)",
    )
    watching.add_argument(
        "--metrics-address",
        default=os.environ.get("TESELA_METRICS_ADDRESS", ""),
        metavar="IP",
        help="on this address alone, as in 127.0.0.1 (env TESELA_METRICS_ADDRESS; default: on every one)",
    )
    watching.add_argument(
        "--traces",
        action="store_true",
        default=any(os.environ.get(name) for name in _TRACE_ENDPOINTS),
        help=f"send OpenTelemetry traces by OTLP over HTTP (on where {_TRACE_ENDPOINTS[0]} is set)",
    )
    add_log_arguments(watching)


def _add_paths(paths: argparse._ArgumentGroup) -> None:
    add_plugins_dir(paths)
    paths.add_argument(
        "--registry-dir",
        type=Path,
        metavar="DIR",
        help="where the kubelet looks for plugins' sockets (default: plugins_registry in --kubelet-root)",
    )
    paths.add_argument("--cdi-dir", type=Path, default=Path("/var/run/cdi"), help="%(default)s")
    paths.add_argument(
        "--pod-resources",
        type=Path,
        metavar="SOCKET",
        help="where the kubelet tells which GPUs a device plugin gave to pods: they are tainted "
        "(default: pod-resources/kubelet.sock in --kubelet-root)",
    )
    paths.add_argument(
        "--driver-root",
        type=Path,
        default=Path("/"),
        help="root of the GPU driver on the host (/)",
    )
    add_driver_root_mount(paths)
    paths.add_argument("--dev-root", type=Path, default=Path("/"), help="folder on the host that holds dev/ (/)")
    paths.add_argument("--dev-root-mount", type=Path, help="where this process sees it (default: --dev-root)")
    paths.add_argument("--proc-root", type=Path, default=Path("/proc"), help="the host's /proc (%(default)s)")
    paths.add_argument("--sys-root", type=Path, default=Path("/sys"), help="the host's /sys (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Run the driver until a signal or a failure."""
    config = read_config(args)
    from tesela.plugin.main import run_plugin  # noqa: PLC0415 -- usage errors must not wait for gRPC to load

    return run_plugin(config)


def read_config(args: argparse.Namespace) -> PluginConfig:
    """The settings. StartError: something that cannot work is missing or out of range."""
    if not args.node_name:
        raise StartError("the node's name is missing: pass --node-name, or set NODE_NAME from spec.nodeName")
    if not is_dns_subdomain(args.node_name):
        raise StartError(f"--node-name {args.node_name!r} is no node's name: take it from `kubectl get nodes`")
    if not 0 <= args.driver_wait <= _LONGEST_S:
        raise StartError(f"--driver-wait is {args.driver_wait:g}: give seconds from 0 to {_LONGEST_S:.0f}")
    if not 0 < args.nvml_timeout <= _LONGEST_S:
        raise StartError(f"--nvml-timeout is {args.nvml_timeout:g}: give seconds, above 0, at most {_LONGEST_S:.0f}")
    _check_paths(args)
    if args.driver_libraries not in list(LibraryMode):
        raise StartError(f"--driver-libraries is {args.driver_libraries!r}: give one of {', '.join(LibraryMode)}")
    check_log_arguments(args)
    return PluginConfig(
        node_name=args.node_name,
        pod_uid=args.pod_uid or None,
        kubeconfig=args.kubeconfig or None,
        nvml=args.nvml,
        policy=args.policy,
        plugins_dir=get_plugins_dir(args),
        registry_dir=args.registry_dir or args.kubelet_root / "plugins_registry",
        cdi_dir=args.cdi_dir,
        driver_root=args.driver_root,
        driver_root_mount=args.driver_root_mount or args.driver_root,
        dev_root=args.dev_root,
        dev_root_mount=args.dev_root_mount or args.dev_root,
        proc_root=args.proc_root,
        sys_root=args.sys_root,
        driver_wait_s=args.driver_wait,
        nvml_timeout_s=args.nvml_timeout,
        pod_resources=args.pod_resources or args.kubelet_root / "pod-resources/kubelet.sock",
        beside_device_plugin=args.beside_device_plugin,
        driver_libraries=LibraryMode(args.driver_libraries),
        adopted_partitions=get_adopted_partitions(args),
        metrics_port=parse_port("--metrics-port", args.metrics_port) if args.metrics_port else None,
        metrics_address=args.metrics_address,
        traces=args.traces,
        log_format=LogFormat(args.log_format),
        log_level=args.log_level,
    )


def _check_paths(args: argparse.Namespace) -> None:
    for flag in _HOST_PATHS:
        path: Path | None = getattr(args, flag.removeprefix("--").replace("-", "_"))
        if path is not None and not path.is_absolute():
            raise StartError(f"{flag} {path} is not absolute: give it as the host names it, from / on")
    if args.nvml.startswith(_SERVED_ELSEWHERE):
        return  # the simulator makes these folders, and may come later
    for flag, folder in (("--proc-root", args.proc_root), ("--sys-root", args.sys_root)):
        if not folder.is_dir():
            raise StartError(f"{flag} {folder} is no folder here: mount the host's there, or point the flag at it")
