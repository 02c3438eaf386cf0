"""From an id to its group, as docs/placement.md defines it."""

import numpy as np

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def key(ids):
    """The keys of an array of int64 ids: the finalizer of SplitMix64."""
    z = np.array(ids, np.int64, ndmin=1).view(np.uint64)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def group_of(ids, groups):
    """The number of the group of each id, in a store of this many groups: floor(key * groups / 2^64).

    The product has up to 80 bits, so it is computed from the halves of the key. The number of groups is at most 65,536,
    and so each partial product has at most 49 bits.
    """
    z, n = key(ids), np.uint64(groups)
    return (((z >> _HALF) * n + ((z & _LOW) * n >> _HALF)) >> _HALF).astype(np.int64)
