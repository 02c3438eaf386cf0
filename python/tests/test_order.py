"""The order of an epoch: golden values, uniformity, and batches that do not depend on ranks."""

import hashlib
import pickle

import numpy as np
import pytest

from sheafdb.ml.order import READY, Order, Permutation

# For seed 7 and epoch 3: the first elements, and a hash of the first 5,000. These values never change, because a run
# that is continued depends on them.
GOLDEN = {
    1: ([0], "af5570f5a1810b7a"),
    2: ([1, 0], "4cbbd8ca5215b8d1"),
    7: ([2, 4, 6, 1], "9d42e528ba4f5abe"),
    1000: ([576, 941, 207, 355], "916f0db55c34c7d6"),
    1048577: ([141655, 922130, 843145, 756246], "324f9e6420dbfbb1"),
    1099511627776: ([692860295537, 540762519883, 953748382584, 671320515589], "76dc3775bacf5523"),
}
GOLDEN_BLOCKS = {
    7: ([3, 0, 6, 2], "f64d4f500ca8286b"),
    1000: ([714, 563, 341, 690], "f6499fc913598442"),
    1048577: ([538483, 962014, 526013, 876175], "c63484a61e158e1a"),
}


def head(n, shuffle):
    return Order(n, seed=7, shuffle=shuffle).at(np.arange(min(n, 5000)), 3)


def sha(values):
    return hashlib.sha256(values.astype("<i8").tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("n", GOLDEN)
def test_golden_values(n):
    assert (head(n, "full")[:4].tolist(), sha(head(n, "full"))) == GOLDEN[n]


@pytest.mark.parametrize("n", GOLDEN_BLOCKS)
def test_golden_values_of_blocks(n):
    assert (head(n, "blocks")[:4].tolist(), sha(head(n, "blocks"))) == GOLDEN_BLOCKS[n]


def test_every_record_has_one_place_for_every_n_to_2000():
    for n in range(1, 2001):
        values = Permutation(n, 1, n)(np.arange(n))
        assert np.array_equal(np.sort(values), np.arange(n)), n


@pytest.mark.parametrize("n", [4096, 4097, 65536, 65537, 3 * READY + 1])
def test_every_record_has_one_place_in_large_sets(n):
    assert np.array_equal(np.sort(Order(n, seed=2).at(np.arange(n), 5)), np.arange(n))


@pytest.mark.parametrize("n", [1, 2, 5, 16, 17, 160, 161, 700])
@pytest.mark.parametrize("block, window", [(1, 8), (16, 4), (7, 3), (1000, 2)])
def test_every_record_has_one_place_in_blocks(n, block, window):
    order = Order(n, seed=3, shuffle="blocks", block=block, window=window)
    for epoch in range(3):
        assert np.array_equal(np.sort(order.at(np.arange(n), epoch)), np.arange(n))


def test_blocks_read_few_runs_at_a_time():
    order = Order(100_000, seed=3, shuffle="blocks", block=100, window=8)
    values = order.at(np.arange(100_000))
    runs = [np.unique(values[at : at + 800] // 100).size for at in range(0, 99_200, 800)]
    assert max(runs) <= 9  # the last block of the set may be short, and then a window touches one run more
    inside = values[:800] // 100
    assert (np.diff(inside) != 0).mean() > 0.7  # neighbours come from different runs


def test_place_of_is_the_inverse():
    for n in (1, 2, 3, 7, 1000, 4097, 2**20 + 1, 2**40):
        permutation = Permutation(n, 9, 1)
        for position in {0, n // 3, n - 1}:
            assert permutation.place_of(int(permutation(position)[0])) == position


def excess(counts, expected):
    """How many standard deviations chi-squared is above its mean."""
    counts = np.asarray(counts, float)
    freedom = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("n, epochs", [(3, 800), (5, 1600), (12, 800), (100, 400), (5000, 40)])
def test_places_are_uniform_over_epochs(n, epochs):
    buckets = min(n, 50)
    counts = np.zeros((buckets, buckets))
    places = np.arange(n) * buckets // n
    for epoch in range(epochs):
        np.add.at(counts, (places, Permutation(n, 11, epoch)(np.arange(n)) * buckets // n), 1)
    assert abs(excess(counts, n * epochs / buckets**2)) < 4


@pytest.mark.parametrize("n", [2**20 + 1, 2**40])
def test_places_are_uniform_within_one_epoch(n):
    positions = np.arange(400_000)
    counts = np.zeros((20, 1000))
    np.add.at(counts, (positions * 20 // 400_000, Order(n, seed=5).at(positions) * 1000 // n), 1)
    assert abs(excess(counts, 400_000 / 20_000)) < 4


@pytest.mark.parametrize("n", [1000, 4097, 2**20 + 1, 2**40])
def test_neighbours_are_not_correlated(n):
    size = min(n, 200_000)
    values = Order(n, seed=5).at(np.arange(size)).astype(float)
    for distance in (1, 2, 3, 64):
        correlation = np.corrcoef(values[:-distance], values[distance:])[0, 1]
        assert abs(correlation) < 4 / np.sqrt(size), distance


def test_epochs_and_seeds_differ_and_do_not_repeat():
    def begin(seed, epoch):
        return tuple(Order(1000, seed=seed).at(np.arange(8), epoch).tolist())

    assert len({begin(0, epoch) for epoch in range(500)}) == 500
    assert len({begin(seed, 0) for seed in range(500)}) == 500
    assert begin(1, 2) != begin(2, 1)
    assert begin(2**64 - 1, 2**64 - 1) != begin(0, 0)


@pytest.mark.parametrize("last", ["short", "drop", "wrap"])
@pytest.mark.parametrize("shuffle", ["full", "blocks", None])
@pytest.mark.parametrize("n, batch", [(1, 8), (7, 8), (8, 8), (1000, 37), (READY + 50, 4096)])
def test_global_batches_are_the_same_for_every_world(n, batch, shuffle, last):
    if last == "drop" and n < batch:
        return
    alone = Order(n, seed=1, batch=batch, shuffle=shuffle, last=last)
    expected = [alone.indexes(j, 4) for j in range(len(alone))]
    whole = alone.at(np.arange(n), 4)
    assert sum(part.size for part in expected) == alone.length
    assert np.array_equal(np.concatenate(expected), whole[np.arange(alone.length) % n])
    if last == "short":
        assert np.array_equal(np.sort(np.concatenate(expected)), np.arange(n))
    for world in range(2, 8):
        ranks = [Order(n, 1, batch, rank, world, shuffle, last) for rank in range(world)]
        for j, batch_of_all in enumerate(expected):
            parts = [order.indexes(j, 4) for order in ranks]
            assert np.array_equal(np.concatenate(parts), batch_of_all)
            assert max(p.size for p in parts) - min(p.size for p in parts) <= 1


def test_batches_are_read_in_any_order():
    order = Order(300_000, seed=1, batch=1000)
    expected = order.at(np.arange(300_000), 0)
    for j in (0, 299, 65, 66, 2, 131):
        assert np.array_equal(order.indexes(j), expected[j * 1000 : j * 1000 + 1000])
    assert not np.array_equal(order.indexes(2, 1), order.indexes(2, 0))


def test_an_epoch_is_a_sampler():
    order = Order(10, batch=4)
    assert [a.size for a in order.epoch(0)] == [4, 4, 2]
    assert len(order.epoch(0, start=1)) == 2
    assert [a.tolist() for a in order.epoch(3, 1)] == [order.indexes(j, 3).tolist() for j in (1, 2)]
    copy = pickle.loads(pickle.dumps(order))
    assert copy.indexes(1, 3).tolist() == order.indexes(1, 3).tolist()


def test_no_records_have_no_batches():
    assert len(Order(0)) == 0 and list(Order(0).epoch(0)) == []


@pytest.mark.parametrize("fields, words", [
    (dict(n=-1), "n is -1"),
    (dict(n=1.5), "n is 1.5"),
    (dict(n=True), "whole number"),
    (dict(n=2**62 + 1), "2\\^62"),
    (dict(n=4, seed=-1), "seed is -1"),
    (dict(n=4, seed=2**64), "2\\^64-1"),
    (dict(n=4, batch=0), "batch is 0"),
    (dict(n=4, batch=2, rank=2, world=2), "ranks are 0 to 1"),
    (dict(n=9, batch=2, world=3), "cannot be below world"),
    (dict(n=4, batch=8, last="drop"), "would drop all"),
    (dict(n=0, batch=8, last="drop"), "would drop all"),
    (dict(n=0, last="wrap"), "no records"),
    (dict(n=4, shuffle="yes"), "shuffle is 'yes'"),
    (dict(n=4, last="no"), "last is 'no'"),
])
def test_what_cannot_be_is_refused(fields, words):
    with pytest.raises((TypeError, ValueError), match=words):
        Order(**fields)


def test_positions_outside_are_refused():
    order = Order(4, batch=2)
    for call in (lambda: order.at([4]), lambda: order.at([-1]), lambda: order.indexes(2), lambda: order.indexes(-1)):
        with pytest.raises(IndexError):
            call()
    with pytest.raises(ValueError, match="epoch is -1"):
        order.indexes(0, -1)
