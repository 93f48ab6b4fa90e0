from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.errors import DocumentError
from tesela.core.quantity import NANOS, Quantity, QuantityFormat, format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", Fraction(0)),
        ("14", Fraction(14)),
        ("-3", Fraction(-3)),
        ("+3", Fraction(3)),
        ("1500m", Fraction(3, 2)),
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("1.", Fraction(1)),
        ("250u", Fraction(1, 4000)),
        ("7n", Fraction(7, 10**9)),
        ("12k", Fraction(12_000)),
        ("2E", Fraction(2 * 10**18)),
        ("3e2", Fraction(300)),
        ("5E-3", Fraction(5, 1000)),
        ("Gi", Fraction(0)),
        ("4864Mi", Fraction(4864 * 2**20)),
        ("1.5Gi", Fraction(3 * 2**29)),
    ],
)
def test_a_quantity_is_exact(text, value):
    assert Fraction(parse_quantity(text).nanos, NANOS) == value


def test_finer_than_a_billionth_is_rounded_away_from_zero():
    assert [parse_quantity(text).nanos for text in ("0.1n", "-0.1n")] == [1, -1]


def test_binary_quantities_stop_at_the_largest_int64():
    assert parse_quantity("8Ei") == parse_quantity("9223372036854775807")


@pytest.mark.parametrize("text", ["", "1 Gi", "1Kib", "1K", "x", "1e", "1.2.3", "0x10", "1mi"])
def test_other_texts_are_refused(text):
    with pytest.raises(DocumentError, match="no quantity"):
        parse_quantity(text, "spec.value")


def test_a_refusal_names_the_field():
    with pytest.raises(DocumentError, match=r"^spec\.value: "):
        parse_quantity("much", "spec.value")


def test_an_exponent_out_of_reason_is_refused():
    with pytest.raises(DocumentError, match="exponent"):
        parse_quantity("1e999999999")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1024Mi", "1Gi"),
        ("1536Mi", "1536Mi"),
        ("512", "512"),
        ("1000", "1k"),
        ("1500m", "1500m"),
        ("2000m", "2"),
        ("0.5", "500m"),
        ("1.5Ki", "1536"),
        ("0.5Ki", "512"),
        ("3000e3", "3e6"),
        ("-2048Ki", "-2Mi"),
        ("0Gi", "0"),
    ],
)
def test_the_canonical_text_keeps_the_format_and_drops_fractions(text, canonical):
    assert str(parse_quantity(text)) == canonical


def test_quantities_compare_by_value_alone():
    assert parse_quantity("1Ki") == parse_quantity("1024")


def test_only_whole_numbers_within_int64_are_integers():
    texts = ("3", "3Gi", "1500m", "9223372036854775807", "9223372036854775808")

    assert [parse_quantity(text).is_integer for text in texts] == [True, True, False, True, False]


@given(st.integers(-(10**30), 10**30), st.sampled_from([QuantityFormat.DECIMAL_SI, QuantityFormat.DECIMAL_EXPONENT]))
def test_decimal_text_reads_back_as_the_same_value(nanos, quantity_format):
    quantity = Quantity(nanos, quantity_format)

    assert parse_quantity(format_quantity(quantity)) == quantity


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_binary_text_reads_back_as_the_same_value(units):
    quantity = Quantity(units * NANOS, QuantityFormat.BINARY_SI)

    assert parse_quantity(format_quantity(quantity)) == quantity
