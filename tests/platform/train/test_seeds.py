"""Named streams of random numbers are independent where NumPy's own padding would make them one."""

import itertools

import numpy as np
import pytest

from retable.platform.train.seeds import generator, sequence

PLACES = [(), (0,), (0, 0), (0, 0, 0), (1,), (1, 0), (0, 1), (2**32 - 1,)]


def test_numpy_pads_entropy_with_zeros() -> None:
    """The defect that streams guard against; if NumPy ever mends it, this says so."""
    assert np.random.default_rng([3, 1]).integers(2**62) == np.random.default_rng([3, 1, 0]).integers(2**62)


def test_places_seeds_and_streams_are_all_different() -> None:
    keys = list(itertools.product((0, 1, 2**32, 2**64), ("order", "crops", "order0"), PLACES))
    drawn = {generator(seed, stream, *where).bytes(16) for seed, stream, where in keys}
    assert len(drawn) == len(keys)


def test_a_stream_is_not_that_of_the_bare_seed() -> None:
    assert generator(7, "order").bytes(16) != np.random.default_rng(7).bytes(16)


def test_a_stream_is_the_same_in_every_process() -> None:
    """Written down once: a change of it changes every number that rests on it."""
    assert sequence(1, "order", 2, 3).generate_state(2).tolist() == [2970660958, 2020973199]


@pytest.mark.parametrize("where", [(-1,), (2**32,), (0, 2**32)])
def test_a_place_out_of_range_is_refused(where: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="order"):
        generator(0, "order", *where)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"non-negative|positive"):
        generator(-1, "order")
