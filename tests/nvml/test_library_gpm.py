"""GPM samples: buffers of the client's own, which it may give back or mix up. The fixture `other` is a Hopper."""

from __future__ import annotations

import ctypes
from ctypes import byref

import pynvml
import pytest
from nvml import library as lib
from nvml.needs import library
from tesela.edge.nvml import codes

pytestmark = library()

MOST = 1024


@pytest.fixture
def sample(nvml):
    return pynvml.nvmlGpmSampleAlloc()


def ask(nvml, first, second, *metric_ids, version=1, count=None):
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = version, len(metric_ids) if count is None else count
    asked.sample1, asked.sample2 = first, second
    for metric, metric_id in zip(asked.metrics, metric_ids, strict=False):
        metric.metricId = metric_id
    return nvml.nvmlGpmMetricsGet(byref(asked)), asked


@pytest.fixture
def samples(nvml, other, server):
    """Two of the H100, a second apart."""
    now = server.machine.clock()
    handles = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    for at, one in zip((now, now + 1), handles, strict=True):
        server.machine.clock = lambda at=at: at
        assert nvml.nvmlGpmSampleGet(other, one) == codes.SUCCESS
    return handles


def test_support_as_nvidia_s_binding_asks_for_it(gpu, other):
    assert [pynvml.nvmlGpmQueryDeviceSupport(one).isSupportedDevice for one in (gpu, other)] == [0, 1]


@pytest.mark.parametrize("word", [0, 2, 8 | 1 << 24, 0xFFFFFFFF], ids=hex)
def test_a_version_of_support_is_a_bare_number(word, nvml, other):
    asked = lib.filled(pynvml.c_nvmlGpmSupport_t, version=word)
    assert nvml.nvmlGpmQueryDeviceSupport(other, byref(asked)) == codes.ARGUMENT_VERSION_MISMATCH


def test_an_unknown_version_word_of_a_request(nvml, sample):
    assert ask(nvml, sample, sample, 2, version=7)[0] == codes.ARGUMENT_VERSION_MISMATCH


def test_each_metric_has_a_code_of_its_own(nvml, samples):
    code, asked = ask(nvml, *samples, 2, 4711)
    assert (code, [one.nvmlReturn for one in asked.metrics[:2]]) == (
        codes.SUCCESS,
        [codes.SUCCESS, codes.NOT_SUPPORTED],
    )


def test_more_metrics_than_the_request_has_room_for(nvml, samples):
    assert ask(nvml, *samples, count=478)[0] == codes.INVALID_ARGUMENT


def test_a_sample_that_nothing_was_read_into(nvml, sample):
    assert ask(nvml, sample, sample, 2)[0] == codes.INVALID_ARGUMENT


def test_a_sample_of_a_gpu_is_read_of_no_instance(nvml, other, sample):
    assert nvml.nvmlGpmMigSampleGet(other, 3, sample) == codes.NOT_FOUND


def test_a_sample_that_was_given_back(nvml, other, sample):
    assert nvml.nvmlGpmSampleFree(sample) == codes.SUCCESS
    assert nvml.nvmlGpmSampleFree(sample) == codes.INVALID_ARGUMENT
    assert nvml.nvmlGpmSampleGet(other, sample) == codes.INVALID_ARGUMENT


def test_the_slot_of_a_sample_that_was_given_back_is_another_s(nvml, sample):
    nvml.nvmlGpmSampleFree(sample)
    second = pynvml.nvmlGpmSampleAlloc()
    assert nvml.nvmlGpmSampleFree(sample) == codes.INVALID_ARGUMENT
    assert nvml.nvmlGpmSampleFree(second) == codes.SUCCESS


def test_no_more_samples_than_there_is_room_for(nvml):
    handles = [pynvml.nvmlGpmSampleAlloc() for _ in range(MOST)]
    code = nvml.nvmlGpmSampleAlloc(byref(ctypes.c_void_p()))
    assert {nvml.nvmlGpmSampleFree(one) for one in handles} == {codes.SUCCESS}
    assert code == codes.MEMORY


def test_samples_end_with_the_session(nvml, sample):
    nvml.nvmlShutdown()
    nvml.nvmlInit_v2()
    assert nvml.nvmlGpmSampleFree(sample) == codes.INVALID_ARGUMENT


@pytest.mark.parametrize("handle", [0, 1, 0xDEADBEEF, 2**64 - 1], ids=hex)
def test_what_is_no_sample(nvml, other, handle):
    assert nvml.nvmlGpmSampleGet(other, ctypes.c_void_p(handle)) == codes.INVALID_ARGUMENT
