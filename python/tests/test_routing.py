"""Groups by the hash of ids, as on docs/placement.md."""

import numpy as np
import pytest

from sheafdb.routing import group_of, key

GOLDEN = {
    0: 0x0000000000000000, 1: 0x5692161D100B05E5, -1: 0xB4D055FCF2CBBD7B, 42: 0xA759EA27D4727622,
    9223372036854775807: 0x5A682AFE7965DEBD, -9223372036854775808: 0x25C26EA579CEA98A,
}


def test_keys():
    assert key(list(GOLDEN)).tolist() == list(GOLDEN.values())


@pytest.mark.parametrize("groups", [1, 2, 3, 16, 1000, 65535, 65536])
def test_groups_are_the_high_half_of_the_product(groups):
    ids = np.concatenate([np.array(list(GOLDEN)), np.random.default_rng(1).integers(-(2**63), 2**63, 2000)])
    assert group_of(ids, groups).tolist() == [k * groups >> 64 for k in key(ids).tolist()]


def test_groups_own_the_keys_from_their_border():
    # Group g owns the keys from ceil(g * 2^64 / N). The ids of these keys are found by undoing the mix.
    for groups in (3, 7, 65535):
        for g in (1, groups // 2, groups - 1):
            border = -(-g * 2**64 // groups)
            for k, expected in ((border, g), (border - 1, g - 1)):
                id = unmixed(k)
                assert key([id]).tolist() == [k] and group_of([id], groups).tolist() == [expected]


def unmixed(z):
    word = 2**64 - 1
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        x = z
        for _ in range(3):
            x = z ^ (x >> shift)
        z = x * pow(factor, -1, 2**64) & word
    return z - 2**64 if z >= 2**63 else z
