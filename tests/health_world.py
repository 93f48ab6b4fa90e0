"""Health for tests of pure decisions: two GPUs, a fixed clock, and what may be observed on them."""

from __future__ import annotations

from gpu_models import a100, h100, roster
from hypothesis import strategies as st
from tesela.core.health.model import ALL_HEALTHY, NodeHealth
from tesela.core.health.observations import (
    GpuAnswers,
    GpuLost,
    ModeFree,
    ModeHeld,
    NodeMissing,
    NodePresent,
    Observation,
    Reading,
    ResetSeen,
    StormSeen,
    Wedged,
    XidSeen,
)
from tesela.core.health.rules import plan_health
from tesela.core.health.signals import DEFAULT_HEALTH_POLICY, HealthPolicy
from tesela.core.health.xids import XIDS
from tesela.core.model import Placement
from tesela.core.roster import Roster

NOW_S = 1_000_000
ROSTER = roster(a100(0), h100(1))
GPU, OTHER = (known.gpu.uuid for known in ROSTER.gpus)
PLACES = (None, *(Placement(start=start, size=size) for size in (1, 2, 4, 8) for start in range(0, 8, size)))
DEVICES = [(uuid, place) for uuid in (GPU, OTHER) for place in PLACES]

gpus = st.sampled_from((GPU, OTHER))
places = st.sampled_from(PLACES)
xid_numbers = st.sampled_from([row[0] for row in XIDS]) | st.integers(1, 999)
counts = st.none() | st.integers(0, 200_000)
xids = st.builds(XidSeen, gpu_uuid=gpus, xid=xid_numbers, placement=places, count=st.integers(1, 1000))
storms = st.builds(StormSeen, gpu_uuid=gpus, count=st.integers(1, 1000))
readings = st.builds(
    Reading,
    gpu_uuid=gpus,
    ecc_uncorrected_volatile=counts,
    ecc_uncorrected_aggregate=counts,
    ecc_corrected_volatile=counts,
    remap_pending=st.none() | st.booleans(),
    remap_failure=st.none() | st.booleans(),
    recovery_action=st.none() | st.integers(0, 9),
    fabric_state=st.none() | st.integers(0, 3),
)
presence = st.builds(GpuLost, gpu_uuid=gpus) | st.builds(GpuAnswers, gpu_uuid=gpus)
nodes = st.builds(NodeMissing, gpu_uuid=gpus, path=st.just("/dev/nvidia0")) | st.builds(NodePresent, gpu_uuid=gpus)
modes = st.builds(ModeHeld, gpu_uuid=gpus, wants_mig=st.booleans(), holder=st.text(max_size=80)) | st.builds(
    ModeFree, gpu_uuid=gpus
)
wedges = st.builds(Wedged, gpu_uuids=st.frozensets(gpus), whole_node=st.booleans())
resets = st.builds(ResetSeen, gpu_uuid=gpus)
conditions = st.one_of(readings, presence, nodes, modes, wedges)
observations = st.one_of(xids, storms, conditions, resets)


def tell(
    *told: Observation,
    health: NodeHealth = ALL_HEALTHY,
    roster: Roster = ROSTER,
    now_s: int = NOW_S,
    policy: HealthPolicy = DEFAULT_HEALTH_POLICY,
    since: NodeHealth | None = None,
) -> NodeHealth:
    """The health after what is told."""
    return plan_health(health, policy, told, roster=roster, now_s=now_s, since=since)[0]


healths = st.lists(observations, max_size=8).map(lambda told: tell(*told))


def signals_of(health: NodeHealth, gpu_uuid: str = GPU) -> list[str]:
    return [one.signal for one in health.findings if one.gpu_uuid == gpu_uuid]
