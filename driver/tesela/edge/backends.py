"""Which NVML a driver speaks to, from the text of its `--nvml` flag. Backends are imported only when chosen."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tesela.core.errors import DocumentError, NvmlError, StartError
from tesela.edge.host.driver_root import LIBRARY_FOLDERS, NVML_LIBRARY, find_library
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.nvml.library_file import LibraryFile
from tesela.edge.nvml.port import Nvml


def open_nvml(spec: str, driver_root_mount: Path = Path("/")) -> Nvml:
    """The backend that `spec` names, not yet initialised: `init` is the caller's.

    `real`: the host's library, found below `driver_root_mount`; where that is `/`, by the dynamic linker.
    `simulated:MACHINE`: GPUs in this process, as in `simulated:a100-40gb*8`.
    `simulated:unix:PATH`: the GPUs of `tesela sim serve`. StartError: anything else, or a machine nobody could build.
    """
    kind, _, rest = spec.partition(":")
    if spec == "real":
        from tesela.edge.nvml.native import NativeNvml  # noqa: PLC0415 - ctypes and the binding cost start-up time

        return NativeNvml(None if driver_root_mount == Path("/") else partial(_get_library, driver_root_mount))
    if kind == "simulated" and rest.startswith("unix:"):
        from tesela.edge.simulator.remote import RemoteNvml  # noqa: PLC0415 - likewise

        path = rest.removeprefix("unix:")
        if not path:
            raise StartError("--nvml simulated:unix: needs the path of the socket of `tesela sim serve`")
        return RemoteNvml(Path(path))
    if kind == "simulated" and rest:
        from tesela.edge.simulator.machine import build_machine  # noqa: PLC0415 - likewise
        from tesela.edge.simulator.nvml import SimulatedNvml  # noqa: PLC0415 - likewise

        try:
            return SimulatedNvml(build_machine(rest))
        except DocumentError as error:
            raise StartError(f"--nvml {spec}: {error}") from error
    raise StartError(f"--nvml {spec!r} is unknown; use real, simulated:a100-40gb*8 or simulated:unix:PATH")


def open_library_file(spec: str, driver_root_mount: Path = Path("/")) -> LibraryFile | None:
    """Who notices that the library behind `open_nvml` was replaced. None: there is none on the host's disk."""
    if spec != "real":
        return None
    if driver_root_mount == Path("/"):
        return LibraryFile()
    return LibraryFile(find=partial(find_library, driver_root_mount, NVML_LIBRARY))


def _get_library(root: Path) -> Path:
    found = find_library(root, NVML_LIBRARY)
    if found is None:
        problem = (
            f"there is no {NVML_LIBRARY} in {', '.join(LIBRARY_FOLDERS)} below {root}: install the GPU driver, or "
            "point --driver-root-mount at where its root is mounted"
        )
        if not root.is_dir():
            problem = (
                f"{root} is no folder here, so {NVML_LIBRARY} cannot be found below it: mount the GPU driver's root "
                "there, or correct --driver-root-mount"
            )
        raise NvmlError(codes.LIBRARY_NOT_FOUND, FUNCTIONS["init"], problem)
    return found
