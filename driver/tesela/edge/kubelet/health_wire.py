"""Messages of DRAResourceHealth v1 and v1alpha1 from the port's types and back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from tesela.core.text import cut_text
from tesela.edge.kubelet.port import DeviceHealth
from tesela.pb.dra_health.v1 import api_pb2 as v1
from tesela.pb.dra_health.v1alpha1 import api_pb2 as v1alpha1

HOLDS_S: Final = 30
"""How long an entry holds without another one (`health_check_timeout_seconds`): the kubelet's own default."""

MAX_MESSAGE_BYTES: Final = 1024
"""core/v1 ResourceHealth.message; the kubelet cuts a longer one, and may cut through a character."""

_V1 = {None: v1.UNKNOWN, True: v1.HEALTHY, False: v1.UNHEALTHY}
_V1ALPHA1 = {None: v1alpha1.UNKNOWN, True: v1alpha1.HEALTHY, False: v1alpha1.UNHEALTHY}


def render_report_v1(report: Sequence[DeviceHealth]) -> v1.NodeWatchResourcesResponse:
    """One entry per device."""
    now_s = int(time.time())
    return v1.NodeWatchResourcesResponse(
        devices=[
            v1.DeviceHealth(
                device=v1.DeviceIdentifier(pool_name=one.pool, device_name=one.device),
                health=_V1[one.healthy],
                last_updated_time=now_s,
                health_check_timeout_seconds=HOLDS_S,
                message=cut_text(one.message, MAX_MESSAGE_BYTES),
            )
            for one in report
        ]
    )


def render_report_v1alpha1(report: Sequence[DeviceHealth]) -> v1alpha1.NodeWatchResourcesResponse:
    """One entry per device; the same fields under another name."""
    now_s = int(time.time())
    return v1alpha1.NodeWatchResourcesResponse(
        devices=[
            v1alpha1.DeviceHealth(
                device=v1alpha1.DeviceIdentifier(pool_name=one.pool, device_name=one.device),
                health=_V1ALPHA1[one.healthy],
                last_updated_time=now_s,
                health_check_timeout_seconds=HOLDS_S,
                message=cut_text(one.message, MAX_MESSAGE_BYTES),
            )
            for one in report
        ]
    )


def parse_report(
    response: v1.NodeWatchResourcesResponse | v1alpha1.NodeWatchResourcesResponse,
) -> tuple[tuple[DeviceHealth, int], ...]:
    """The other direction, for whoever plays the kubelet: each device, and the seconds that its entry holds."""
    healthy = {int(number): one for one, number in _V1.items()}  # the numbers of both versions are equal
    return tuple(
        (
            DeviceHealth(
                pool=one.device.pool_name,
                device=one.device.device_name,
                healthy=healthy.get(int(one.health)),
                message=one.message,
            ),
            one.health_check_timeout_seconds if one.health_check_timeout_seconds > 0 else HOLDS_S,
        )
        for one in response.devices
    )
