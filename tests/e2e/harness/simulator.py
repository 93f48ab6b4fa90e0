"""`tesela sim serve` as a process of its own: GPUs that outlive their driver, and what lives on them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.harness.build import HarnessError
from e2e.harness.cluster import Cluster
from e2e.harness.processes import Process, wait_until
from e2e.harness.tesela_command import find_nvml_library, find_tesela
from tesela.core.errors import NvmlError
from tesela.edge.host.driver_root import NVML_LIBRARY
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import GpuInstanceProfileInfo
from tesela.edge.simulator.admin import SimulatorAdmin
from tesela.edge.simulator.remote import RemoteNvml

_PROFILE_ENUMS = range(32)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Seen:
    """A partition that lives in the simulator; `ci_id` is -1 while it has no compute instance."""

    gpu: int
    start: int
    size: int
    profile: str
    gi_id: int
    ci_id: int
    uuid: str

    @property
    def complete(self) -> bool:
        """Whether it has its compute instance."""
        return self.ci_id >= 0


class Simulator:
    """One machine's GPUs; `host` is the root of its stand-in /proc, /sys and /dev, `driver_root` the driver's."""

    def __init__(self, cluster: Cluster, gpus: str) -> None:
        self.cluster = cluster
        self.host = cluster.sandbox.folder / "host"
        self.socket = cluster.sandbox.folder / "nvml.sock"
        self.socket.unlink(missing_ok=True)
        self.driver_root = cluster.sandbox.folder / "driver-root"
        self.nvidia_smi_log = self.driver_root / "nvidia-smi.log"
        _write_nvidia_smi(self.driver_root / "usr" / "bin" / "nvidia-smi", self.nvidia_smi_log)
        library = self.driver_root / "usr" / "lib64" / NVML_LIBRARY
        library.parent.mkdir(parents=True, exist_ok=True)
        if not library.exists():  # a driver may have it loaded, as one that waits for its GPUs does
            shutil.copy(find_nvml_library(), library)
        argv = [find_tesela(), "sim", "serve", "--gpus", gpus, "--socket", self.socket, "--host-root", self.host]
        self.process = Process(cluster.sandbox, "simulator", argv)
        cluster.processes["simulator"] = self.process
        wait_until("the simulator listens", self._listens, timeout_s=20)

    @property
    def client_environment(self) -> dict[str, str]:
        """What makes a process find these GPUs behind libnvidia-ml.so.1, as it finds real ones."""
        return {"LD_LIBRARY_PATH": str(find_nvml_library().parent), "TESELA_SIM_SOCKET": str(self.socket)}

    def stop(self) -> None:
        """Ends the process; its GPUs and everything on them are gone."""
        self.process.stop()

    def run(self, *arguments: str) -> str:
        """`tesela sim ARGUMENTS` against this machine: fail, slow, hang, release, busy, lose, reset, reboot."""
        verb, *rest = arguments
        return self.cluster.run([find_tesela(), "sim", verb, "--socket", self.socket, *rest])

    def list_calls(self) -> list[tuple[str, str]]:
        """NVML calls that a latency or a hang holds up: function, and whether `slow`, `hung` or `ending`."""
        admin = SimulatorAdmin(self.socket)
        try:
            return [(call["function"], call["phase"]) for call in admin.send({"op": "status"})["calls"]]
        finally:
            admin.close()

    def list_gpus(self) -> list[str]:
        """GPU UUIDs in index order."""
        with self._nvml() as nvml:
            return [nvml.get_uuid(index) for index in range(nvml.get_device_count())]

    def get_mig_modes(self) -> list[bool]:
        """Whether MIG mode is on, per GPU in index order."""
        with self._nvml() as nvml:
            uuids = [nvml.get_uuid(index) for index in range(nvml.get_device_count())]
            return [nvml.get_mig_mode(uuid).current == codes.MIG_ENABLED for uuid in uuids]

    def list_partitions(self) -> list[Seen]:
        """Every live GPU instance with its compute instances, in order of GPU and placement."""
        with self._nvml() as nvml:
            return sorted(
                seen for index in range(nvml.get_device_count()) for seen in _list_partitions(nvml, index)
            )  # fmt: skip

    def set_mig_mode(self, gpu: int, *, on: bool) -> None:
        """Switches a GPU's MIG mode behind the driver's back, as `nvidia-smi -mig` does."""
        with self._nvml() as nvml:
            status = nvml.set_mig_mode(nvml.get_uuid(gpu), codes.MIG_ENABLED if on else codes.MIG_DISABLED)
        if status != codes.SUCCESS:
            raise HarnessError(f"the MIG mode of GPU {gpu} stays: {status}")

    def create_gpu_instance(self, gpu: int, profile: str, start: int) -> int:
        """Makes a GPU instance and no compute instance in it, as `nvidia-smi mig -cgi` does; its id."""
        with self._nvml() as nvml:
            uuid = nvml.get_uuid(gpu)
            found = next(one for one in _list_profiles(nvml, uuid) if one.name.removeprefix("MIG ") == profile)
            placements = nvml.get_gpu_instance_possible_placements(uuid, found.profile_id)
            placement = next(one for one in placements if one.start == start)
            return nvml.create_gpu_instance(uuid, found.profile_id, placement).gi_id

    def destroy_gpu_instance(self, gpu: int, gi_id: int) -> None:
        """Destroys a GPU instance that has no compute instance, as `nvidia-smi mig -dgi` does."""
        with self._nvml() as nvml:
            nvml.destroy_gpu_instance(nvml.get_uuid(gpu), gi_id)

    def destroy_partition(self, seen: Seen) -> None:
        """Destroys a partition behind the driver's back, as `nvidia-smi mig -dci` and `-dgi` do."""
        with self._nvml() as nvml:
            nvml.destroy_compute_instance(nvml.get_uuid(seen.gpu), seen.gi_id, seen.ci_id)
        self.destroy_gpu_instance(seen.gpu, seen.gi_id)

    def list_device_nodes(self, *partitions: Seen) -> set[str]:
        """What a container that was granted exactly these partitions shows under /dev of NVIDIA's nodes."""
        nodes = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
        for seen in partitions:
            minor = self.get_minor(seen.gpu)
            nodes.add(f"nvidia{minor}")
            folder = self.host / "proc" / "driver" / "nvidia" / "capabilities" / f"gpu{minor}" / "mig"
            for access in (f"gi{seen.gi_id}/access", f"gi{seen.gi_id}/ci{seen.ci_id}/access"):
                number = re.search(r"DeviceFileMinor: (\d+)", (folder / access).read_text())
                if number is None:
                    raise HarnessError(f"{folder / access} names no DeviceFileMinor")
                nodes.add(f"nvidia-caps/nvidia-cap{number[1]}")
        return nodes

    def get_minor(self, gpu: int) -> int:
        """N of /dev/nvidiaN today."""
        with self._nvml() as nvml:
            return nvml.get_minor_number(nvml.get_uuid(gpu))

    @contextmanager
    def _nvml(self) -> Iterator[RemoteNvml]:
        nvml = RemoteNvml(Path(self.socket), timeout_s=10)
        nvml.init()
        try:
            yield nvml
        finally:
            nvml.shutdown()

    def _listens(self) -> bool:
        if not self.process.alive:
            raise HarnessError(f"the simulator ended:\n{self.process.tail()}")
        if not self.socket.exists():
            return False
        try:
            return bool(self.list_gpus())
        except NvmlError:
            return False


def _write_nvidia_smi(program: Path, log: Path) -> None:
    """A stand-in that succeeds and keeps what it was asked for, a line a call."""
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\necho "$*" >> {log}\n')
    program.chmod(0o755)


def _list_profiles(nvml: RemoteNvml, uuid: str) -> Iterator[GpuInstanceProfileInfo]:
    for profile_enum in _PROFILE_ENUMS:
        with suppress(NvmlError):  # a profile that this GPU lacks
            yield nvml.get_gpu_instance_profile_info(uuid, profile_enum)


def _list_partitions(nvml: RemoteNvml, index: int) -> Iterator[Seen]:
    uuid = nvml.get_uuid(index)
    for profile in _list_profiles(nvml, uuid):
        try:
            instances = nvml.get_gpu_instances(uuid, profile.profile_id)
        except NvmlError:
            continue  # MIG mode is off
        for instance in instances:
            ci_id, mig_uuid = _find_compute_instance(nvml, uuid, instance.gi_id)
            yield Seen(
                gpu=index,
                start=instance.placement.start,
                size=instance.placement.size,
                profile=profile.name.removeprefix("MIG "),
                gi_id=instance.gi_id,
                ci_id=ci_id,
                uuid=mig_uuid,
            )


def _find_compute_instance(nvml: RemoteNvml, uuid: str, gi_id: int) -> tuple[int, str]:
    for profile_enum in _PROFILE_ENUMS:
        try:
            info = nvml.get_compute_instance_profile_info(uuid, gi_id, profile_enum)
            for instance in nvml.get_compute_instances(uuid, gi_id, info.profile_id):
                return instance.ci_id, instance.mig_uuid
        except NvmlError:
            continue  # a profile that this GPU instance lacks
    return -1, ""
