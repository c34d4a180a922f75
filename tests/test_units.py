"""Bytes in powers of two under their own names, counts in powers of ten, and people's spellings of
both.
"""

from __future__ import annotations

import pytest

from llmcalc.errors import InputError
from llmcalc.units import count, parse_bytes, parse_count, percent, size


@pytest.mark.parametrize(
    ("n", "binary", "si"),
    [
        (0, "0 B", "0 B"),
        (1023, "1023 B", "1.02 kB"),
        (1024, "1.00 KiB", "1.02 kB"),
        (2**30, "1.00 GiB", "1.07 GB"),
        (2**30 - 1, "1.00 GiB", "1.07 GB"),
        (10**12, "931.32 GiB", "1.00 TB"),
    ],
)
def test_sizes(n: int, binary: str, si: str) -> None:
    assert (size(n), size(n, si=True)) == (binary, si)


@pytest.mark.parametrize(
    ("n", "text"),
    [(12, "12"), (124439808, "124.44 M"), (671026404352, "671.03 B"), (999999, "1.00 M")],
)
def test_counts(n: int, text: str) -> None:
    assert count(n) == text


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("80GB", 80 * 10**9),
        ("8GiB", 8 * 2**30),
        ("512", 512),
        ("1.5 TiB", 3 * 2**39),
        ("24gib", 24 * 2**30),
        ("1_000", 1000),
    ],
)
def test_bytes_are_read_by_their_unit(text: str, n: int) -> None:
    assert parse_bytes(text) == n


@pytest.mark.parametrize(
    ("text", "n"),
    [("70B", 70 * 10**9), ("70e9", 70 * 10**9), ("128k", 128000), ("8Ki", 8192), ("1.5M", 1500000)],
)
def test_counts_are_read(text: str, n: int) -> None:
    assert parse_count(text) == n


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "1.2.3GB", "8 giraffes", "0.3B bytes", "1e400", "nan"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_bytes(text)


def test_a_share_that_is_not_zero_is_never_shown_as_zero() -> None:
    assert percent(1, 10**9) == "<0.1 %"
    assert percent(0, 5) == "0.0 %"
