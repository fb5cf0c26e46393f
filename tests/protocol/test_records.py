"""A record comes back from its bytes as it was, and no damage to them goes unnoticed."""

from __future__ import annotations

import pytest
from record_examples import BODIES, record_of

from fencepost.protocol.format import Damaged, digest
from fencepost.protocol.records import KINDS, Body, Done, Epoch, decode, encode, positions


def test_every_kind_has_an_example_here() -> None:
    assert set(KINDS.values()) == {type(body) for body in BODIES}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_a_record_comes_back_from_its_bytes(body: Body) -> None:
    record = record_of(body)
    assert record == decode(encode(record))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_single_flipped_bit_is_noticed(body: Body) -> None:
    data = encode(record_of(body))
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(Damaged):
                decode(bytes(flipped))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: type(body).__name__)
def test_every_truncation_is_noticed(body: Body) -> None:
    data = encode(record_of(body))
    for length in range(len(data)):
        with pytest.raises(Damaged):
            decode(data[:length])


def test_bytes_that_mean_the_same_but_are_written_otherwise_are_refused() -> None:
    """With a sum that is right: somebody wrote it by hand."""
    data = encode(record_of(Done(Epoch(1))))
    content = data[: data.index(b',"sum":')].replace(b'"at":', b'"at": ') + b"}"
    with pytest.raises(Damaged, match="canonical"):
        decode(content[:-1] + b',"sum":"%b"}\n' % digest(content).encode())


def test_positions_leave_out_sparks_own_settings() -> None:
    assert positions('v1\n{"batchWatermarkMs":0}\n7') == positions('v1\n{"batchWatermarkMs":5}\n7')
    assert positions("v1\n{}\n7") != positions("v1\n{}\n8")
