"""The admission program: HTTPS for the API server's reviews and the kubelet's probes, until a signal."""

from __future__ import annotations

import logging
import signal
import threading
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

from tesela import __version__
from tesela.admission.classes import Classes
from tesela.admission.review import answer_review
from tesela.core.errors import DocumentError
from tesela.edge.http.certificate import CertificateFiles
from tesela.edge.http.server import Answer, HttpServer
from tesela.edge.kube.client import KubeClient
from tesela.edge.kube.config import load_config
from tesela.edge.kube.port import Kube
from tesela.edge.telemetry.logs import LogFormat, configure_logs

log = logging.getLogger(__name__)

REVIEW_PATH: Final = "/validate-configs"
_API_S: Final = 2.0
"""Of one request for DeviceClasses: a review has five seconds (timeoutSeconds of the webhook configuration)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionConfig:
    """Settings of `tesela admission`."""

    certificate: Path
    key: Path
    port: int
    address: str = ""
    kubeconfig: str | None = None
    log_format: LogFormat = LogFormat.TEXT
    log_level: str = "info"


def run_admission(config: AdmissionConfig) -> int:
    """Serve until SIGTERM or SIGINT (0). StartError: it cannot."""
    configure_logs(config.log_format, config.log_level)
    kube = KubeClient(load_config(config.kubeconfig), timeout_s=_API_S)
    server = build_server(config, kube)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    server.start()
    log.info("tesela %s reviews configs on port %d", __version__, server.port)
    stop.wait()
    server.close()
    kube.close()
    return 0


def build_server(config: AdmissionConfig, kube: Kube) -> HttpServer:
    """Not started yet. StartError: no certificate, or the port cannot be had."""
    return HttpServer(
        config.address,
        config.port,
        {"/healthz": _say_ok, "/readyz": _say_ok},
        posts={REVIEW_PATH: partial(_review, Classes(kube))},
        tls=CertificateFiles(config.certificate, config.key).get_context,
        flag="--port",
    )


def _say_ok(_accept: str) -> Answer:
    return Answer(HTTPStatus.OK, b"ok\n")


def _review(classes: Classes, body: bytes) -> Answer:
    try:
        return Answer(HTTPStatus.OK, answer_review(body, classes), "application/json")
    except DocumentError as error:
        log.warning("a review cannot be read: %s", error)
        return Answer(HTTPStatus.BAD_REQUEST, f"{error}\n".encode())
