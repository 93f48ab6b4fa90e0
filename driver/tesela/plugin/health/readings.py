"""Read the health of every GPU again and again: what events do not tell, and what they told while nobody listened.

At start a pass is made before anything is published, since NVML delivers no event from before its registration. A GPU's
calls go together and under the watchdog; one that hangs holds up no other. What cannot be read is unknown, never zero.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from tesela.core.errors import NvmlError, StateError, TryAgain
from tesela.core.health.observations import GpuAnswers, GpuLost, NodeMissing, NodePresent, Observation, Reading
from tesela.core.roster import KnownGpu
from tesela.edge.host.host import Host
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import Nvml
from tesela.edge.nvml.watchdog import together
from tesela.plugin.health.keeper import HealthKeeper
from tesela.plugin.inventory import LOOK_TIMEOUT_S
from tesela.plugin.lookout import Lookout
from tesela.plugin.loop import Loop, PausablePart
from tesela.plugin.side_by_side import run_side_by_side

log = logging.getLogger(__name__)
T = TypeVar("T")

PERIOD_S: Final = 10.0
_LEAST_PAUSE_S: Final = 1.0
"""Between two passes, however often somebody asks for one: a storm of events asks all the time."""
_FIELDS: Final = (
    codes.FIELD_ECC_CURRENT,
    codes.FIELD_REMAPPED_PENDING,
    codes.FIELD_REMAPPED_FAILURE,
    codes.FIELD_RECOVERY_ACTION,
)
"""One call for all: each has a return code of its own. Remapped rows are refused while GPU instances live."""
_LACKING: Final = (codes.NOT_SUPPORTED, codes.FUNCTION_NOT_FOUND, codes.INVALID_ARGUMENT)


class Readings(PausablePart):
    """A thread that reads, first after a period; `read` is one pass, for whoever cannot wait for it.

    `on_change` is told, with a reason, of a GPU that went or came back, so that somebody looks at the machine; it must
    not block.
    """

    def __init__(
        self,
        *,
        nvml: Nvml,
        host: Host,
        lookout: Lookout,
        keeper: HealthKeeper,
        on_change: Callable[[str], None],
        period_s: float = PERIOD_S,
    ) -> None:
        self._nvml = nvml
        self._host = host
        self._lookout = lookout
        self._keeper = keeper
        self._on_change = on_change
        self._period_s = period_s
        self._lacking: set[tuple[str, int, bool | None, str]] = set()
        self._problems: dict[str, str] = {}
        self._lost: set[str] = set()
        self._loop = Loop("readings", self._turn, first_s=period_s)

    def resume(self) -> None:
        """Go on, with a pass at once; what NVML lacked is asked again."""
        self._lacking.clear()
        super().resume()

    def wake(self) -> None:
        """The next pass comes soon: something happened. Costs nothing, from any thread."""
        self._loop.wake()

    def read(self) -> tuple[Observation, ...]:
        """One pass over every GPU; what it saw, which the keeper has been told.

        It takes as long as its slowest GPU: what another one answered is old by then, and must not take back what an
        event told meanwhile.
        """
        since = self._keeper.health
        jobs = {known.gpu.uuid: partial(self._look_at, known) for known in self._lookout.roster.gpus}
        seen = run_side_by_side(jobs, timeout_s=LOOK_TIMEOUT_S, name="health")
        observations = tuple(one for found in seen.values() for one in found)
        self._keeper.observe(*observations, since=since)
        return observations

    def _turn(self) -> float:
        self.read()
        self._loop.rest(_LEAST_PAUSE_S)
        return self._period_s - _LEAST_PAUSE_S

    def _look_at(self, known: KnownGpu) -> tuple[Observation, ...]:
        """Everything about one GPU. Whatever it does, the others are read."""
        uuid = known.gpu.uuid
        if not known.present:
            return self._look_for(uuid)
        try:
            reading, minor = together(self._nvml, uuid, lambda: self._read_gpu(known))
        except NvmlError as error:
            if error.code in codes.GPU_GONE:
                self._tell_lost(uuid, str(error))
                return (GpuLost(gpu_uuid=uuid),) if error.code == codes.GPU_IS_LOST else ()
            self._say(uuid, str(error))
            return ()
        except TryAgain as error:
            self._say(uuid, str(error))  # of a call that hangs the watchdog tells whom it concerns
            return ()
        self._lost.discard(uuid)
        self._say(uuid, "")
        return (GpuAnswers(gpu_uuid=uuid), reading, *self._look_for_node(uuid, minor))

    def _look_for(self, uuid: str) -> tuple[Observation, ...]:
        """A GPU that was gone at the last look at the machine: asked for what only the GPU itself can answer."""
        try:
            self._nvml.get_memory_info(uuid)
        except NvmlError as error:
            if error.code not in _LACKING:
                return ()
        except TryAgain:
            return ()
        self._lost.discard(uuid)
        self._on_change(f"GPU {uuid} is back")
        return ()

    def _tell_lost(self, uuid: str, problem: str) -> None:
        if uuid not in self._lost:
            self._lost.add(uuid)
            log.warning("GPU %s is lost: %s", uuid, problem)
            self._on_change(f"GPU {uuid} is lost")

    def _read_gpu(self, known: KnownGpu) -> tuple[Reading, int]:
        """The reading, and today's minor: a MIG switch may have moved it since the last look at the machine."""
        uuid = known.gpu.uuid
        minor = self._nvml.get_minor_number(uuid)
        fields = self._ask(known, "get_field_values", lambda: self._nvml.get_field_values(uuid, _FIELDS))
        ecc, pending, failure, action = fields if fields is not None else (None,) * len(_FIELDS)
        fabric_state, fabric_status = self._get_fabric(known)
        reading = Reading(
            gpu_uuid=uuid,
            # Where ECC is off nothing is counted, and every question would be refused.
            ecc_uncorrected_volatile=None if ecc == 0 else self._count(known, uncorrected=True, aggregate=False),
            ecc_uncorrected_aggregate=None if ecc == 0 else self._count(known, uncorrected=True, aggregate=True),
            ecc_corrected_volatile=None if ecc == 0 else self._count(known, uncorrected=False, aggregate=False),
            remap_pending=None if pending is None else bool(pending),
            remap_failure=None if failure is None else bool(failure),
            recovery_action=action,
            fabric_state=fabric_state,
            fabric_status=fabric_status,
        )
        return reading, minor

    def _get_fabric(self, known: KnownGpu) -> tuple[int | None, int]:
        """State and status.

        Partitions have no NVLink: what a GPU in MIG mode says must not keep the whole GPU from leaving that mode.
        """
        if known.gpu.mig_enabled:
            return codes.FABRIC_NOT_SUPPORTED, codes.SUCCESS
        fabric = self._ask(known, "get_fabric_info", lambda: self._nvml.get_fabric_info(known.gpu.uuid))
        return (None, codes.SUCCESS) if fabric is None else (fabric.state, fabric.status)

    def _count(self, known: KnownGpu, *, uncorrected: bool, aggregate: bool) -> int | None:
        return self._ask(
            known,
            f"get_total_ecc_errors {uncorrected=} {aggregate=}",  # a board may count one kind and not another
            lambda: self._nvml.get_total_ecc_errors(known.gpu.uuid, uncorrected=uncorrected, aggregate=aggregate),
        )

    def _ask(self, known: KnownGpu, what: str, question: Callable[[], T]) -> T | None:
        """The answer; None where the GPU has none.

        What it does not support is not asked again in this generation and MIG mode (nvml.h: on a GPU in MIG mode the
        volatile counts cannot be asked of the GPU as a whole).
        """
        key = (known.gpu.uuid, known.generation, known.gpu.mig_enabled, what)
        if key in self._lacking:
            return None
        try:
            return question()
        except NvmlError as error:
            if error.code in codes.GPU_GONE:
                raise
            if error.code in _LACKING:
                self._lacking.add(key)
            else:
                log.debug("GPU %s: %s", known.gpu.uuid, error)
            return None

    def _look_for_node(self, uuid: str, minor: int) -> tuple[Observation, ...]:
        try:
            self._host.get_gpu_node(minor)
        except TryAgain:
            return (NodeMissing(gpu_uuid=uuid, path=f"/dev/nvidia{minor}"),)
        except StateError as error:
            log.debug("the device node of GPU %s is not known: %s", uuid, error)
            return ()
        return (NodePresent(gpu_uuid=uuid),)

    def _say(self, uuid: str, problem: str) -> None:
        """A GPU that fails again and again is named once."""
        if problem and self._problems.get(uuid) != problem:
            log.warning("the health of GPU %s cannot be read: %s", uuid, problem)
        self._problems[uuid] = problem
