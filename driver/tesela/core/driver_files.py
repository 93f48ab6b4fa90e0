"""What a container needs of the host's GPU driver besides device nodes: its libraries, and what makes them be found.

Two sources. NVIDIA's container toolkit describes the driver as a CDI document (`nvidia-ctk cdi generate`), of which the
part that every container gets is taken: it mounts each library under its file name, and hooks make the links and the
linker's cache. Without it each library is mounted under its SONAME where linkers look by themselves, and no hook is
needed. Device nodes are never taken from there: they are ours (`core/cdi.py`). Nothing here looks at a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeAlias

from tesela.core.errors import DocumentError

Json: TypeAlias = dict[str, Any]

CUDA: Final = "libcuda.so"
_LINKS_HOOK: Final = "create-symlinks"
_NULL: Final = "/dev/null"
_OWN_VARIABLES: Final = ("NVIDIA_VISIBLE_DEVICES",)
"""Of those the document has its own."""
_HOOK_NAMES: Final = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
"""Of the OCI runtime specification; a runtime refuses a document with any other."""
_PASSING: Final = ("/run/", "/var/run/", "/tmp/")  # noqa: S108 -- where such sockets lie in a container
_NOT_THE_DRIVERS: Final = ("//", "/dev/", "/proc/", "/sys/")
"""Device nodes are ours, and the others are the kernel's; two slashes are a root of their own in POSIX."""
_LEAST_PARTS: Final = 2
"""A folder and a name: never a folder of the root itself."""
_OPTIONS: Final = ("ro", "nosuid", "nodev", "bind")


class LibraryMode(StrEnum):
    """What `--driver-libraries` may be."""

    AUTO = "auto"
    TOOLKIT = "toolkit"
    MOUNT = "mount"
    NONE = "none"


class LibrarySource(StrEnum):
    """Where the libraries of containers come from, in the end."""

    TOOLKIT = "toolkit"
    MOUNT = "mount"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMount:
    """A file, socket or folder of the host in a container. `host_path` is the host's own path."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = _OPTIONS

    @property
    def is_passing(self) -> bool:
        """Whether it comes and goes with a service: it is mounted where it is there, and nobody misses it."""
        return any(self.container_path.startswith(folder) for folder in _PASSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program of the host that the container runtime runs; `name` says when, `args` begin with the program's name."""

    name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverEdits:
    """What is done to each container that has a device, the same to all."""

    mounts: tuple[FileMount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    environment: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A shared object of the driver on the host, and its SONAME (its file's name where it has none)."""

    host_path: str
    soname: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """What changes when another file stands at `host_path`."""

    host_path: str
    inode: int
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """What containers get of one version of the driver.

    `key` is what it was made from, and `identities` are the files that it names: where either changed, it is made anew.
    `problem` says why a better source was not taken; "" where there is none, or none was asked for.
    """

    key: str
    driver_version: str
    source: LibrarySource
    edits: DriverEdits = DriverEdits()
    identities: tuple[FileIdentity, ...] = ()
    problem: str = ""


def render_digest(files: DriverFiles) -> str:
    """Equal where containers get the same, sockets of services aside. Another one: CDI files are written anew."""
    lasting = [mount for mount in files.edits.mounts if not mount.is_passing]
    body = render_driver_edits(replace(files.edits, mounts=tuple(lasting)))
    return hashlib.sha256(json.dumps([files.driver_version, body], sort_keys=True).encode()).hexdigest()[:16]


def parse_toolkit_cdi(text: str) -> DriverEdits:
    """The edits that every container gets, of a CDI document in JSON. Paths are as they stand there.

    Taken are `env`, `mounts` and `hooks`; fields that newer versions of the toolkit may add are left. DocumentError
    names the field that is not as the Container Device Interface specification has it.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DocumentError("", f"no JSON: {error}") from error
    edits = _get(_as_object(document, ""), "containerEdits", dict, "", {})
    mounts = _get(edits, "mounts", list, "containerEdits.", [])
    hooks = _get(edits, "hooks", list, "containerEdits.", [])
    variables = _get_variables(edits, "containerEdits.")
    parsed_mounts = (_parse_mount(one, f"containerEdits.mounts[{index}]") for index, one in enumerate(mounts))
    return DriverEdits(
        mounts=tuple(mount for mount in parsed_mounts if mount is not None),
        hooks=tuple(_parse_hook(one, f"containerEdits.hooks[{index}]") for index, one in enumerate(hooks)),
        environment=tuple(one for one in variables if one.partition("=")[0] not in _OWN_VARIABLES),
    )


def place_on_host(edits: DriverEdits, *, seen_root: str, host_root: str) -> DriverEdits:
    """The same with the host's paths, where who wrote it saw as `seen_root` what the host calls `host_root`.

    A path outside of `seen_root` is taken for the host's own, and so is /dev/null.
    """
    seen, host = seen_root.rstrip("/"), host_root.rstrip("/")

    def place(path: str) -> str:
        is_seen = path != _NULL and path.startswith(f"{seen}/")
        return host + path.removeprefix(seen) if is_seen else path

    return replace(
        edits,
        mounts=tuple(replace(mount, host_path=place(mount.host_path)) for mount in edits.mounts),
        hooks=tuple(replace(hook, path=place(hook.path)) for hook in edits.hooks),
    )


def keep_existing(edits: DriverEdits, exists: Callable[[str], bool]) -> DriverEdits:
    """Without mounts and hooks whose path the host does not have: with one of them no container would start."""
    return replace(
        edits,
        mounts=tuple(mount for mount in edits.mounts if mount.host_path == _NULL or exists(mount.host_path)),
        hooks=tuple(hook for hook in edits.hooks if exists(hook.path)),
    )


def find_gap(edits: DriverEdits, driver_version: str) -> str:
    """Why a container could not use CUDA with what the toolkit described, as the end of a sentence; "": it could."""
    wanted = f"{CUDA}.{driver_version}"
    if not any(mount.container_path.endswith(f"/{wanted}") for mount in edits.mounts):
        return f"it names no {wanted}, the library of the driver that NVML speaks for"
    if not any(_LINKS_HOOK in hook.args for hook in edits.hooks):
        return (
            f"the program of its hook {_LINKS_HOOK} (nvidia-cdi-hook) is not on the host, and without links nothing "
            "finds the libraries"
        )
    return ""


def plan_library_mounts(libraries: Iterable[Library], *, machine: str) -> tuple[FileMount, ...]:
    """Each library under its SONAME in both folders where the linkers of distributions look without being told.

    Red Hat's and SUSE's look into /usr/lib64, Debian's and Ubuntu's into /usr/lib/<machine>-linux-gnu; `machine` is the
    kernel's word, as in x86_64. Programs that open CUDA by the name of its development link find that, too. The first
    library of a SONAME counts.
    """
    by_name: dict[str, str] = {}
    for library in libraries:
        by_name.setdefault(library.soname, library.host_path)
    if f"{CUDA}.1" in by_name:
        by_name.setdefault(CUDA, by_name[f"{CUDA}.1"])
    folders = ("/usr/lib64", f"/usr/lib/{machine}-linux-gnu")
    return tuple(
        FileMount(host_path=host_path, container_path=f"{folder}/{name}")
        for folder in folders
        for name, host_path in sorted(by_name.items())
    )


def render_driver_edits(edits: DriverEdits, missing: frozenset[str] = frozenset()) -> Json:
    """The edits as a CDI document holds them, without empty lists; `missing` are host paths that are left out."""
    body: Json = {
        "env": list(edits.environment),
        "mounts": [_render_mount(mount) for mount in edits.mounts if mount.host_path not in missing],
        "hooks": [_render_hook(hook) for hook in edits.hooks],
    }
    return {key: value for key, value in body.items() if value}


def _render_mount(mount: FileMount) -> Json:
    return {"hostPath": mount.host_path, "containerPath": mount.container_path, "options": list(mount.options)}


def _render_hook(hook: Hook) -> Json:
    rendered: Json = {"hookName": hook.name, "path": hook.path}
    if hook.args:
        rendered["args"] = list(hook.args)
    if hook.env:
        rendered["env"] = list(hook.env)
    if hook.timeout_s is not None:
        rendered["timeout"] = hook.timeout_s
    return rendered


def _parse_mount(value: object, path: str) -> FileMount | None:
    """None for a file system of its own, which is not the host's."""
    entry = _as_object(value, path)
    if _get(entry, "type", str, f"{path}.", "bind") not in {"", "bind"}:
        return None
    return FileMount(
        host_path=_get_path(entry, "hostPath", path),
        container_path=_get_container_path(entry, path),
        options=_get_texts(entry, "options", f"{path}."),
    )


def _parse_hook(value: object, path: str) -> Hook:
    entry = _as_object(value, path)
    name = _get(entry, "hookName", str, f"{path}.", "")
    if name not in _HOOK_NAMES:
        raise DocumentError(f"{path}.hookName", f"{name!r} is none of {', '.join(_HOOK_NAMES)}")
    return Hook(
        name=name,
        path=_get_path(entry, "path", path),
        args=_get_texts(entry, "args", f"{path}."),
        env=_get_variables(entry, f"{path}."),
        timeout_s=_get(entry, "timeout", int, f"{path}.", None),
    )


def _as_object(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DocumentError(path, "no object")
    return value


def _get(entry: Mapping[str, Any], key: str, kind: type, prefix: str, default: Any) -> Any:
    value = entry.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DocumentError(f"{prefix}{key}", f"no {kind.__name__}")
    return value


def _get_texts(entry: Mapping[str, Any], key: str, prefix: str) -> tuple[str, ...]:
    values: Sequence[object] = _get(entry, key, list, prefix, [])
    for index, value in enumerate(values):
        if not isinstance(value, str) or not value.isprintable():
            raise DocumentError(f"{prefix}{key}[{index}]", "no str")
    return tuple(str(value) for value in values)


def _get_variables(entry: Mapping[str, Any], prefix: str) -> tuple[str, ...]:
    """One without a name or a `=` makes a runtime refuse the whole document, and with it every container."""
    variables = _get_texts(entry, "env", prefix)
    for index, variable in enumerate(variables):
        name, equals, _ = variable.partition("=")
        if not name or not equals:
            raise DocumentError(f"{prefix}env[{index}]", f"{variable!r} is no NAME=value")
    return variables


def _get_container_path(entry: Mapping[str, Any], path: str) -> str:
    """Where a file of the driver may come to lie. Over `/` or `/etc` it would hide the image from every workload."""
    value = _get_path(entry, "containerPath", path)
    if value.startswith(_NOT_THE_DRIVERS):
        raise DocumentError(f"{path}.containerPath", f"{value!r} is no place for a file of the GPU driver")
    return value


def _get_path(entry: Mapping[str, Any], key: str, path: str) -> str:
    """Of a file below some folder: the root and its folders, of the host as well, are nobody's to give away."""
    value: str = _get(entry, key, str, f"{path}.", "")
    if not value.startswith("/") or not value.isprintable():
        raise DocumentError(f"{path}.{key}", f"{value!r} is no absolute path")
    parts = [part for part in value.split("/") if part]
    if len(parts) < _LEAST_PARTS or not {".", ".."}.isdisjoint(parts):
        raise DocumentError(f"{path}.{key}", f"{value!r} is no place for a file of the GPU driver")
    return value
