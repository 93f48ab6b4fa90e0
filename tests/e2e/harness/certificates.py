"""The certificate authority, certificates and kubeconfigs of one cluster, made with openssl; valid for 30 days."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.harness.build import find_program
from e2e.harness.sandbox import NODE_ADDRESS, SERVICE_ADDRESS

SERVER = f"https://{NODE_ADDRESS}:443"
_NAMES = f"DNS:localhost,DNS:kubernetes.default.svc,DNS:node1,IP:127.0.0.1,IP:{NODE_ADDRESS},IP:{SERVICE_ADDRESS}"
_EXTENSIONS = f"subjectAltName={_NAMES}\nextendedKeyUsage=serverAuth,clientAuth\n"
_EC = ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
SUBJECTS = {
    "apiserver": "/CN=kube-apiserver",
    "admin": "/O=system:masters/CN=admin",
    "scheduler": "/CN=system:kube-scheduler",
    "controller-manager": "/CN=system:kube-controller-manager",
    "node1": "/O=system:nodes/CN=system:node:node1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Files by name in `folder`: ca.crt, sa.key, sa.pub, and NAME.crt, NAME.key, NAME.kubeconfig per subject."""

    folder: Path

    def path(self, name: str) -> Path:
        """The file called `name`."""
        return self.folder / name


def create_certificates(folder: Path) -> Certificates:
    """Makes them all in `folder`, a quarter of a second."""
    folder.mkdir(parents=True)
    (folder / "extensions").write_text(_EXTENSIONS)
    _openssl(folder, "req", "-x509", "-newkey", *_EC, "-nodes", "-keyout", "ca.key", "-out", "ca.crt",
             "-subj", "/CN=test-ca", "-days", "30")  # fmt: skip
    _openssl(folder, "genpkey", "-algorithm", *_EC, "-out", "sa.key")
    _openssl(folder, "pkey", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    for name, subject in SUBJECTS.items():
        _openssl(folder, "req", "-newkey", *_EC, "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
                 "-subj", subject)  # fmt: skip
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                 "-out", f"{name}.crt", "-days", "30", "-extfile", "extensions")  # fmt: skip
        user = {"client-certificate": str(folder / f"{name}.crt"), "client-key": str(folder / f"{name}.key")}
        write_kubeconfig(folder / f"{name}.kubeconfig", folder / "ca.crt", user)
    return Certificates(folder=folder)


def write_kubeconfig(path: Path, ca: Path, user: dict[str, str]) -> None:
    """A kubeconfig (JSON is YAML) of one cluster and one user, as in `users[].user`."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": SERVER, "certificate-authority": str(ca)}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document, indent=1))


def _openssl(folder: Path, *arguments: str) -> None:
    program = find_program("openssl") or "openssl"
    subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True, stdin=subprocess.DEVNULL)
