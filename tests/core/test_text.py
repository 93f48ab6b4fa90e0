"""Sentences that have to fit into a field of the API."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tesela.core.text import cut_text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_text_that_fits_stays(text):
    assert cut_text(text, 160) == text


@given(st.text(min_size=31), st.integers(3, 30))
def test_a_longer_one_is_cut_within_its_limit_and_says_so(text, limit_bytes):
    cut = cut_text(text, limit_bytes)

    assert (len(cut.encode()) <= limit_bytes, cut.endswith("...")) == (True, True)
