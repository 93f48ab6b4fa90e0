"""The parts of a bundle that are files, API objects and facts about this process. NVML's is `bundle_nvml`.

Each part reads and changes nothing, and says of what it could not have why. Nobody's kubeconfig, token or environment
is read into it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import stat
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from tesela import __version__
from tesela.core.errors import ApiError, ApiUnavailable, TeselaError
from tesela.core.model import DRIVER_NAME
from tesela.core.redact import redact_bytes, redact_object, redact_text
from tesela.edge.kube.port import EVENTS, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Kube, Resource
from tesela.edge.store.cdi_files import CdiFiles
from tesela.edge.store.locks import FileLocks
from tesela.edge.store.records import RecordStore

_MOST_BYTES: Final = 4 << 20
_MOST_FILES: Final = 4000
_MOST_LOG_BYTES: Final = 16 << 20
_MOST_ARGUMENT_BYTES: Final = 1 << 16
_SCRAPE_S: Final = 10.0
_STATE_FOLDERS: Final = ("claims", "aside")
_PACKAGES: Final = ("grpcio", "kubernetes", "nvidia-ml-py", "protobuf", "pydantic", "prometheus-client")
_SETTINGS: Final = (
    *("NODE_NAME", "POD_UID", "TESELA_NVML", "TESELA_METRICS_PORT", "TESELA_METRICS_ADDRESS"),
    *("TESELA_LOG_FORMAT", "TESELA_LOG_LEVEL"),
)
"""The driver's own variables: none of them holds a secret, and no other one is read."""


@dataclass(slots=True)
class Part:
    """What one part found: bytes by path in the archive, and what could not be had, by name, with the reason."""

    files: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def put_json(self, path: str, value: Any) -> None:
        """A document, redacted as text."""
        self.put_text(path, json.dumps(value, indent=1, default=str, ensure_ascii=False) + "\n")

    def put_text(self, path: str, text: str) -> None:
        """A text, redacted."""
        self.files[path] = redact_text(text).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where to look. `node_name` "" where nobody said."""

    state_dir: Path
    cdi_dir: Path
    proc_root: Path
    node_name: str
    logs: tuple[Path, ...]
    metrics_url: str


def attempt(name: str, collect: Callable[[], Part]) -> Part:
    """What `collect` found; where it failed as a whole, that as the reason."""
    try:
        return collect()
    except (TeselaError, OSError) as error:
        return Part(missing={name: str(error)})
    except Exception as error:  # noqa: BLE001 -- a fault of ours must not lose the other parts
        return Part(missing={name: f"a fault of tesela: {type(error).__name__}: {error}"})


def collect_about(places: Places) -> Part:
    """Versions and settings of this process and its machine, and how the drivers that run were started."""
    part = Part()
    part.put_json(
        "about.json",
        {
            "tesela": __version__,
            "python": sys.version,
            "kernel": " ".join(platform.uname()[2:5]),
            "packages": {name: _find_version(name) for name in _PACKAGES},
            "settings": {name: os.environ[name] for name in _SETTINGS if name in os.environ},
            "drivers": list(_list_drivers(places.proc_root)),
        },
    )
    return part


def collect_state(places: Places) -> Part:
    """The driver's folder: its documents, records, what was set aside, and a listing of everything."""
    part, root = Part(), places.state_dir
    if not root.is_dir():
        part.missing["state"] = f"{root} is no folder here: run it where the driver runs, or pass --plugins-dir"
        return part
    for path in sorted(root.glob("*.json")):
        _put_file(part, f"state/{path.name}", path)
    for folder in _STATE_FOLDERS:
        for path in sorted((root / folder).glob("*.json")):
            _put_file(part, f"state/{folder}/{path.name}", path)
    part.put_json("state/listing.json", [_describe(root, path) for path in _walk(root)])
    return part


def collect_cdi(places: Places) -> Part:
    """The CDI files of ours, and the names of all."""
    part, files = Part(), CdiFiles(places.cdi_dir)
    for uid in files.list_ours():
        _put_file(part, f"cdi/{files.path(uid).name}", files.path(uid))
    if places.cdi_dir.is_dir():
        part.put_json("cdi/listing.json", [_describe(places.cdi_dir, path) for path in _walk(places.cdi_dir)])
    else:
        part.missing["cdi"] = f"{places.cdi_dir} is no folder here: pass --cdi-dir"
    return part


def collect_locks(places: Places) -> Part:
    """Who holds which lock now, as the kernel says, and who held it last, as its file says. Takes none."""
    part, folder = Part(), FileLocks(places.state_dir).folder
    held = _read_held(places.proc_root / "locks")
    if held is None:
        part.missing["locks held now"] = f"{places.proc_root / 'locks'} cannot be read"
    locks = []
    for path in sorted(folder.glob("*.lock")) if folder.is_dir() else ():
        facts = path.stat()
        holder = path.read_text(encoding="utf-8", errors="replace").strip()
        now = None if held is None else (os.major(facts.st_dev), os.minor(facts.st_dev), facts.st_ino) in held
        locks.append({"lock": path.name, "held": now, "last_holder": holder})
    part.put_json("locks.json", locks)
    return part


def collect_api(places: Places, open_kube: Callable[[], Kube]) -> Part:
    """The driver's slices, the claims of our records, its Events and its Node, as far as the caller may read them."""
    part, kube = Part(), open_kube()
    selector = f"spec.driver={DRIVER_NAME}" + (f",spec.nodeName={places.node_name}" if places.node_name else "")
    refs = [record.claim for record in RecordStore(places.state_dir).list().records]
    wanted: dict[str, Callable[[], Any]] = {
        "version": kube.get_server_version,
        "resourceslices": lambda: _list(kube, RESOURCE_SLICES, selector),
        "resourceclaims": lambda: _list_claims(kube),
        "events": lambda: [one for one in _list(kube, EVENTS) if one.get("reportingController") == DRIVER_NAME],
    }
    if places.node_name:
        wanted["node"] = lambda: _strip_node(redact_object(kube.get(NODES, places.node_name), DRIVER_NAME))
    for name, ask in wanted.items():
        try:
            part.put_json(f"api/{name}.json", ask())
        except ApiUnavailable as error:
            part.missing[f"api/{name}"] = f"{error}; what follows it was not asked for"
            return part
        except ApiError as error:
            part.missing[f"api/{name}"] = str(error)
    if "api/resourceclaims" in part.missing:
        _get_claims(part, kube, ((ref.namespace, ref.name) for ref in refs))
    return part


def collect_logs(places: Places) -> Part:
    """The end of each log that was named, from the beginning of a line."""
    part = Part()
    for path in places.logs:
        name = path.name if f"logs/{path.name}" not in part.files else f"{len(part.files)}-{path.name}"
        try:
            part.put_text(f"logs/{name}", _read_end(path))
        except OSError as error:
            part.missing[f"logs/{name}"] = f"{path}: {error.strerror}"
    if not places.logs:
        part.missing["logs"] = (
            "no --log was given: add `kubectl logs -n NAMESPACE POD` and, after a crash, the same with --previous"
        )
    return part


def _read_end(path: Path) -> str:
    """Not half a line: what its first half says of the rest (that it is a password, say) would be lost."""
    with path.open("rb") as file:
        left_out = max(0, os.fstat(file.fileno()).st_size - _MOST_LOG_BYTES)
        file.seek(left_out)
        data = file.read(_MOST_LOG_BYTES)
    return (data.partition(b"\n")[2] if left_out else data).decode(errors="replace")


def collect_metrics(places: Places) -> Part:
    """What the running driver's metrics say now."""
    part = Part()
    if not places.metrics_url:
        part.missing["metrics"] = "the driver's metrics port is not known: pass --metrics-port, where it has one"
        return part
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # not by way of a proxy that others need
    with direct.open(places.metrics_url, timeout=_SCRAPE_S) as answer:
        part.put_text("metrics.txt", answer.read(_MOST_BYTES).decode(errors="replace"))
    return part


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _list_drivers(proc_root: Path) -> Iterator[Mapping[str, Any]]:
    """The processes that are `tesela plugin`, as far as this one sees others, with their arguments."""
    for folder in sorted(proc_root.glob("[0-9]*")):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            argv = (folder / "cmdline").read_bytes()[:_MOST_ARGUMENT_BYTES].decode(errors="replace").split("\0")[:-1]
            if "plugin" in argv[1:4] and any(Path(word).name == "tesela" for word in argv[:3]):
                yield {"pid": int(folder.name), "arguments": argv}


def _put_file(part: Part, name: str, path: Path) -> None:
    if len(part.files) >= _MOST_FILES:
        part.missing[name] = f"more than {_MOST_FILES} files"
        return
    if path.exists() and not path.is_file():  # a pipe, say, whose reader waits for ever
        part.missing[name] = f"{path} is no regular file"
        return
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        part.missing[name] = f"{path}: {error.strerror}"
        return
    if len(data) > _MOST_BYTES:
        part.missing[name] = f"{path} is larger than {_MOST_BYTES >> 20} MiB"
    else:
        part.files[name] = redact_bytes(data)  # noise is evidence


def _walk(root: Path) -> Iterator[Path]:
    for number, path in enumerate(sorted(root.rglob("*"))):
        if number >= _MOST_FILES:
            return
        yield path


def _describe(root: Path, path: Path) -> Mapping[str, Any]:
    name = str(path.relative_to(root))
    try:
        facts = path.lstat()
    except OSError as error:
        return {"path": name, "error": error.strerror}
    return {
        "path": name,
        "mode": stat.filemode(facts.st_mode),
        "bytes": facts.st_size,
        "modified": facts.st_mtime,
        "inode": facts.st_ino,
    }


def _read_held(path: Path) -> set[tuple[int, int, int]] | None:
    """Device and inode of every file with a flock, from /proc/locks; None where that cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    held = set()
    for line in lines:
        words = line.replace("->", "").split()
        if len(words) > 5 and words[1] == "FLOCK":
            major, minor, inode = words[5].split(":")
            held.add((int(major, 16), int(minor, 16), int(inode)))
    return held


def _list(kube: Kube, resource: Resource, selector: str | None = None) -> list[dict[str, Any]]:
    return [redact_object(one, DRIVER_NAME) for one in kube.list(resource, field_selector=selector).items]


def _list_claims(kube: Kube) -> list[dict[str, Any]]:
    """The claims that are allocated a device of ours."""
    return [one for one in _list(kube, RESOURCE_CLAIMS) if _is_ours(one)]


def _is_ours(claim: Mapping[str, Any]) -> bool:
    allocation = claim.get("status", {}).get("allocation") or {}
    return any(one.get("driver") == DRIVER_NAME for one in allocation.get("devices", {}).get("results", ()))


def _get_claims(part: Part, kube: Kube, names: Iterable[tuple[str, str]]) -> None:
    """The claims of our records one by one: the driver's own account may get, not list."""
    found = []
    for namespace, name in names:
        try:
            found.append(redact_object(kube.get(RESOURCE_CLAIMS, name, namespace), DRIVER_NAME))
        except ApiError as error:
            part.missing[f"api/resourceclaims {namespace}/{name}"] = str(error)
            if isinstance(error, ApiUnavailable):
                break
    part.put_json("api/resourceclaims.json", found)


def _strip_node(node: dict[str, Any]) -> dict[str, Any]:
    """Without its list of container images, which is long and says what else runs there."""
    status = {key: value for key, value in node.get("status", {}).items() if key != "images"}
    return {**node, "status": status}
