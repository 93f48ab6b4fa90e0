"""What the port makes of NVIDIA's Python binding where no simulator can be made to answer so."""

from __future__ import annotations

import pynvml
import pytest
from tesela.core.errors import NvmlError
from tesela.edge.nvml.binding import checked


def test_a_code_of_a_later_nvml_is_named_by_its_number():
    def answer():
        raise pynvml.NVMLError(31)

    with pytest.raises(NvmlError, match=r"nvmlDeviceGetName: NVML code 31 \(31\)"):
        checked("get_name", answer)
