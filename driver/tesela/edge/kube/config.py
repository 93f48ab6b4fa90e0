"""Where the API server is and who we are there: in-cluster (a ServiceAccount's mounted token) or a kubeconfig file.

The official loaders do the parsing (client certificates, tokens, exec plugins, proxies). Both kinds of token file are
read again while the process runs, because bound tokens are rotated under it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from kubernetes.client.configuration import Configuration
from kubernetes.config import ConfigException, load_kube_config
from kubernetes.config.incluster_config import InClusterConfigLoader
from kubernetes.config.kube_config import KubeConfigMerger

from tesela.core.errors import StartError

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_REREAD_S = 60.0


def load_config(
    kubeconfig: str | None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account_dir: Path = SERVICE_ACCOUNT_DIR,
) -> Configuration:
    """The client's configuration from the file `kubeconfig`, or in-cluster where it is None or empty.

    StartError says which of the two failed and what to pass instead.
    """
    configuration = Configuration()
    try:
        if kubeconfig:
            _load_file(configuration, kubeconfig)
        else:
            loader = InClusterConfigLoader(
                token_filename=str(service_account_dir / "token"),
                cert_filename=str(service_account_dir / "ca.crt"),
                environ=environ,
            )
            loader.load_and_set(configuration)
    except (ConfigException, OSError) as error:
        where = f"kubeconfig {kubeconfig}" if kubeconfig else "in-cluster configuration"
        hint = "check the file" if kubeconfig else "run in a pod with a ServiceAccount, or pass --kubeconfig FILE"
        raise StartError(f"{where}: {str(error).rstrip('.')}; {hint}") from error
    if _is_loopback(configuration.host):
        # as client-go: a proxy of the environment cannot reach this machine's own loopback
        configuration.proxy = None
    # one try per call: retries are the caller's, who knows what may be repeated
    configuration.retries = False
    configuration.keep_alive = True
    return configuration


def _load_file(configuration: Configuration, kubeconfig: str) -> None:
    try:
        load_kube_config(config_file=kubeconfig, client_configuration=configuration, persist_config=False)
        _follow_token_file(configuration, kubeconfig)
    except (ConfigException, OSError):
        raise
    except Exception as error:
        # the official loader lets out whatever a malformed document makes of its code, with pieces of the document
        raise ConfigException(f"malformed ({type(error).__name__})") from error


def _follow_token_file(configuration: Configuration, kubeconfig: str) -> None:
    """Reads a kubeconfig user's `tokenFile` again once a minute, as client-go does; the official loader never does."""
    config = KubeConfigMerger(kubeconfig).config
    context = config["contexts"].get_with_name(config["current-context"])["context"]
    user = config["users"].get_with_name(context["user"], safe=True)
    token_file = user["user"].safe_get("tokenFile") if user and user.safe_get("user") else None
    if token_file is None:
        return
    hooked: Any = configuration  # its stub says that there is never a hook
    hooked.refresh_api_key_hook = _TokenFile(Path(kubeconfig).parent / token_file).refresh


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class _TokenFile:
    """The bearer token in a file, kept for `TOKEN_REREAD_S`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at = -TOKEN_REREAD_S

    def refresh(self, configuration: Any) -> None:
        """Puts the file's token into `configuration`; keeps the old one while the file is away (a rotation)."""
        if monotonic() - self._read_at < TOKEN_REREAD_S:
            return
        try:
            token = self._path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return
        configuration.api_key["BearerToken"] = f"Bearer {token}"
        self._read_at = monotonic()
