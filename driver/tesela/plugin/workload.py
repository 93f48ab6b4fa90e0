"""What a workload is shown of its devices: one CDI file per claim, and the metadata files it mounts.

Both are made from the record and rebuilt from it whenever they vanish. The CDI file carries the record as an
annotation, so that a damaged record can be rebuilt from it in turn. A claim that was adopted keeps the file that
NVIDIA's driver wrote, for its containers may be made anew and are to find what they had; when it is gone, ours comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tesela.core.cdi import DeviceNode, render_cdi_ids, render_cdi_names, render_claim_cdi
from tesela.core.errors import NvmlError, StateError, TryAgain
from tesela.core.geometry import Partition
from tesela.core.health.model import ALL_HEALTHY, NodeHealth
from tesela.core.metadata import find_requests, render_metadata
from tesela.core.model import PreparedDevice
from tesela.core.record import ClaimRecord, RecordedDevice, render_answer
from tesela.core.slices.device import render_attributes
from tesela.core.slices.offer import OfferedDevice
from tesela.core.slices.state import Json
from tesela.edge.documents.record import decode_record, encode_record
from tesela.edge.host.host import Host
from tesela.edge.nvml.port import Nvml
from tesela.edge.store.cdi_files import CdiFiles
from tesela.edge.store.metadata_files import MetadataFiles
from tesela.plugin.deadline import Deadline
from tesela.plugin.driver_files import DriverFilesKeeper
from tesela.plugin.lookout import Lookout
from tesela.plugin.sentence import naming

_RECORD = "gpu.nvidia.com/record"
"""Annotation of the CDI document; runtimes ignore it."""


class WorkloadFiles:
    """Writes, restores and removes the files of claims. The caller holds the claim's lock."""

    def __init__(
        self,
        *,
        cdi: CdiFiles,
        metadata: MetadataFiles,
        host: Host,
        nvml: Nvml,
        lookout: Lookout,
        health: Callable[[], NodeHealth] = lambda: ALL_HEALTHY,
        driver_files: DriverFilesKeeper | None = None,
    ) -> None:
        """Without `driver_files` containers get no libraries of the GPU driver."""
        self._cdi = cdi
        self._metadata = metadata
        self._host = host
        self._nvml = nvml
        self._lookout = lookout
        self._health = health
        self._driver_files = driver_files
        self._given: dict[str, str] = {}

    @property
    def driver_files(self) -> DriverFilesKeeper | None:
        """Who knows what containers get of the driver's files; None: they get none."""
        return self._driver_files

    def wait(self, deadline: Deadline) -> None:
        """Return when `write` will not have to wait for others, or at the deadline; before a GPU is locked."""
        if self._driver_files is not None:
            self._driver_files.wait(deadline)

    def write(self, record: ClaimRecord, deadline: Deadline | None = None) -> tuple[PreparedDevice, ...]:
        """Put the claim's files in place and return the answer for the kubelet. Device nodes use today's minors.

        TryAgain instead of a call of NVML that would begin after `deadline`, and where it is not known in time what
        containers get of the driver.
        """
        paths = {request: self._metadata.path(record.claim.uid, request) for request in find_requests(record)}
        for request in paths:
            attributes = {device.device: self._render_attributes(device) for device in record.devices}
            self._metadata.write(record.claim.uid, request, render_metadata(record, request, attributes))
        if self.keeps_theirs(record):
            return render_answer(record, render_cdi_ids(record))
        given = self._driver_files.get(deadline) if self._driver_files is not None else None
        document = render_claim_cdi(
            record,
            common_nodes=self._host.list_common_nodes(),
            device_nodes=[self._list_nodes(record, device, deadline) for device in record.devices],
            metadata_paths={request: str(path) for request, path in paths.items()},
            annotations={_RECORD: encode_record(record).decode()},
            driver_edits=given.edits if given is not None else None,
        )
        self._cdi.write(record.claim.uid, document)
        if given is not None:
            self._given[record.claim.uid] = given.digest
        return render_answer(record, render_cdi_ids(record))

    def remove(self, claim_uid: str) -> None:
        """Remove all files of the claim; nothing happens where there are none."""
        self._cdi.remove(claim_uid)
        self._metadata.remove(claim_uid)
        self._given.pop(claim_uid, None)

    def read_record(self, claim_uid: str) -> ClaimRecord | None:
        """The record that the claim's CDI file carries; None without one, or where that file is damaged too."""
        try:
            document = self._cdi.read(claim_uid)
            annotation = (document or {}).get("annotations", {}).get(_RECORD)
            record = decode_record(annotation.encode()) if isinstance(annotation, str) else None
        except (StateError, AttributeError):
            return None
        return record if record is not None and record.claim.uid == claim_uid else None

    def has_theirs(self, claim_uid: str) -> bool:
        """Whether the claim has a CDI file that NVIDIA's driver wrote: that one prepared it."""
        return bool(self._cdi.list_their_names(claim_uid))

    def keeps_theirs(self, record: ClaimRecord) -> bool:
        """Whether the CDI file of NVIDIA's driver serves this claim: it can be loaded and has every device of it."""
        if not record.adopted:
            return False
        names = self._cdi.list_their_names(record.claim.uid)
        return bool(names) and names.issuperset(render_cdi_names(record))

    def list_complete_claims(self, records: Iterable[ClaimRecord]) -> frozenset[str]:
        """UIDs of the claims that have a CDI file that a runtime can load, and the metadata that ours mounts.

        `records` tell which claims were adopted: NVIDIA's file is one, for those.
        """
        kept = (record.claim.uid for record in records if self.keeps_theirs(record))
        return frozenset((*self._cdi.list_readable(), *kept)).intersection(self._metadata.list_claims())

    def list_outdated_claims(self) -> frozenset[str]:
        """UIDs of the claims whose CDI file names what containers do not get of the driver any more.

        Only of those that this process wrote: it writes all of them at its start.
        """
        digest = self._driver_files.digest if self._driver_files is not None else None
        if digest is None:
            return frozenset()
        return frozenset(uid for uid, given in self._given.copy().items() if given != digest)

    def list_claims(self) -> tuple[str, ...]:
        """UIDs of the claims that have any file of ours."""
        return tuple(sorted({*self._cdi.list_ours(), *self._metadata.list_claims()}))

    def _list_nodes(
        self, record: ClaimRecord, device: RecordedDevice, deadline: Deadline | None
    ) -> Sequence[DeviceNode]:
        with naming(record.claim, [device.device]):
            if deadline is not None:
                deadline.check(f"GPU {device.gpu_uuid}, which answers slowly")
            minor = self._get_minor(device)
            nodes = [self._host.get_gpu_node(minor)]
            current = device.current
            if current is not None:
                if current.gi_id is None or current.ci_id is None:
                    raise StateError("it has no instance on record: delete the claim's pod, and see the driver's log")
                nodes.extend(self._host.get_capability_nodes(minor, current.gi_id, current.ci_id))
            return nodes

    def _get_minor(self, device: RecordedDevice) -> int:
        try:
            return self._nvml.get_minor_number(device.gpu_uuid)
        except NvmlError as error:
            raise TryAgain(f"its GPU does not answer: {error}; the kubelet tries again by itself") from error

    def _render_attributes(self, device: RecordedDevice) -> Json:
        known = self._lookout.roster.find(device.gpu_uuid)
        if known is None:
            return {}
        current = device.current
        profile = current and next((p for p in known.gpu.profiles if p.profile_id == current.profile_id), None)
        partition = Partition(profile=profile, placement=current.placement) if current and profile else None
        offered = OfferedDevice(name=device.device, partition=partition)
        return render_attributes(offered, known, self._lookout.roster, self._health())
