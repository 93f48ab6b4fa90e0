"""How a failure is counted: few results, few causes, each the one that an operator would look for."""

from __future__ import annotations

import pytest
from tesela.core.errors import (
    ApiNotFound,
    ApiUnavailable,
    ClaimRefused,
    DocumentError,
    NvmlError,
    NvmlReleased,
    NvmlTimeout,
    StateError,
    TryAgain,
)
from tesela.edge.nvml import codes
from tesela.edge.telemetry.outcome import CAUSES, name_cause, plan_result


def after(error, cause):
    """`error`, raised from `cause`."""
    error.__cause__ = cause
    return error


FAILURES = [
    (ClaimRefused("no"), "refused", "refused"),
    (DocumentError("a.b", "bad"), "refused", "config"),
    (after(ClaimRefused("named"), DocumentError("a.b", "bad")), "refused", "config"),
    (TryAgain("a lock"), "retry", "busy"),
    (NvmlTimeout("hangs"), "retry", "nvml_timeout"),
    (NvmlReleased("for an upgrade"), "retry", "nvml_released"),
    (after(TryAgain("named"), NvmlTimeout("hangs")), "retry", "nvml_timeout"),
    (after(TryAgain("named"), NvmlError(codes.IN_USE, "nvmlX")), "retry", "nvml_in_use"),
    (after(TryAgain("named"), NvmlError(codes.INSUFFICIENT_RESOURCES, "nvmlX")), "retry", "nvml_no_room"),
    (after(TryAgain("named"), NvmlError(codes.GPU_IS_LOST, "nvmlX")), "retry", "nvml_gpu_lost"),
    (NvmlError(codes.UNKNOWN, "nvmlX"), "error", "nvml"),
    (after(ApiUnavailable(0, "", "away"), OSError("refused")), "retry", "api_unavailable"),
    (after(ClaimRefused("gone"), ApiNotFound(404, "", "gone")), "refused", "api"),
    (after(after(TryAgain("named"), TryAgain("full")), OSError(28, "full")), "retry", "disk"),
    (StateError("damaged"), "error", "state"),
    (after(StateError("damaged"), ValueError("not JSON")), "error", "state"),
    (KeyError("a fault of ours"), "error", "internal"),
]


@pytest.mark.parametrize(("error", "result", "cause"), FAILURES)
def test_a_failure_has_a_result_and_a_cause(error, result, cause):
    assert (plan_result(error), name_cause(error)) == (result, cause)


def test_every_cause_can_occur():
    assert {cause for _, _, cause in FAILURES} == set(CAUSES)


def test_a_chain_that_bites_its_tail_ends():
    one, other = TryAgain("one"), TryAgain("other")
    one.__cause__, other.__cause__ = other, one

    assert name_cause(one) == "busy"


def test_no_error_is_ok():
    assert plan_result(None) == "ok"
