"""Our definitions of the kubelet's protocols are the published ones, in every name, number and type."""

from __future__ import annotations

import pytest
from e2e.compare_descriptors import PROTO, PUBLISHED, find_differences, list_facts, read_file_descriptor
from e2e.harness import build


@pytest.mark.parametrize(("ours", "published"), PUBLISHED.items())
def test_a_definition_equals_the_published_one(ours: str, published: str) -> None:
    folder = build.copy_kubelet_protocols()

    differences = find_differences(
        list_facts(read_file_descriptor(PROTO, ours)), list_facts(read_file_descriptor(folder, published))
    )

    assert list(differences) == []
