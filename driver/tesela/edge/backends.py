"""Which NVML a driver speaks to, from the text of its `--nvml` flag. Backends are imported only when chosen."""

from __future__ import annotations

from pathlib import Path

from tesela.core.errors import DocumentError, StartError
from tesela.edge.nvml.port import Nvml


def open_nvml(spec: str) -> Nvml:
    """The backend that `spec` names, not yet initialised: `init` is the caller's.

    `real`: the host's library. `simulated:MACHINE`: GPUs in this process, as in `simulated:a100-40gb*8`.
    `simulated:unix:PATH`: the GPUs of `tesela sim serve`. StartError: anything else, or a machine nobody could build.
    """
    kind, _, rest = spec.partition(":")
    if spec == "real":
        from tesela.edge.nvml.native import NativeNvml  # noqa: PLC0415 - ctypes and the binding cost start-up time

        return NativeNvml()
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
