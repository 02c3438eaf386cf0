"""The order in which an epoch visits the records of a data set."""

import numpy as np

GAMMA = 0x9E3779B97F4A7C15
MIX1, MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = (1 << 64) - 1

# Rounds of the network. In a small one, a round mixes only a few bits, so it needs more of them.
ROUNDS, SMALL_ROUNDS = 6, 24
SMALL = 4096

# This many values are permuted at a time, so that the intermediate arrays stay in the processor's cache.
CHUNK = 16384
# Batches are cut from this many positions, which are permuted together.
READY = 4 * CHUNK

_MIX1, _MIX2, _32 = np.uint64(MIX1), np.uint64(MIX2), np.uint64(32)


def mix(z):
    """The finalizer of SplitMix64, on a Python integer."""
    z = ((z ^ (z >> 30)) * MIX1) & WORD
    z = ((z ^ (z >> 27)) * MIX2) & WORD
    return z ^ (z >> 31)


class Permutation:
    """A permutation of 0..n-1 that needs no memory for its elements.

    It is a Feistel network over the smallest power of two that is at least n, and at least 4. The upper half of the
    bits, which is one bit larger if their number is odd, and the lower half take turns: each round changes one half by
    a keyed mix of the other. There are 24 rounds for n up to 4,096, and 6 above. A value at or above n goes through
    the network again until it is below n, which takes fewer than two passes on average. The keys are functions of
    (seed, epoch, stream).

    This definition never changes: a run that is continued with a newer version sees the same order.
    """

    def __init__(self, n, seed, epoch, stream=0):
        self.n = n
        bits = max(2, (n - 1).bit_length())
        self.low = bits // 2
        self.high = bits - self.low
        s = 0
        for value in (seed, epoch, stream):
            s = mix(((s ^ value) + GAMMA) & WORD)
        self.keys = [mix((s + (i + 1) * GAMMA) & WORD) for i in range(SMALL_ROUNDS if n <= SMALL else ROUNDS)]

    def __call__(self, positions):
        """The elements at an array of positions below n."""
        out = np.array(positions, np.uint64, ndmin=1)
        spare = [np.empty(min(CHUNK, out.size), np.uint64) for _ in range(3)]
        for start in range(0, out.size, CHUNK):
            self._pass(out[start : start + CHUNK], *spare)
        n, outside = np.uint64(self.n), np.flatnonzero(out >= self.n)
        while outside.size:
            values = out[outside]
            for start in range(0, values.size, CHUNK):
                self._pass(values[start : start + CHUNK], *spare)
            out[outside] = values
            outside = outside[values >= n]
        return out.view(np.int64)

    def _pass(self, x, left, right, z):
        """Takes the values of x through the network once, in place. The other arrays are overwritten."""
        left, right, z = left[: x.size], right[: x.size], z[: x.size]
        low = np.uint64(self.low)
        np.right_shift(x, low, out=left)
        np.bitwise_and(x, np.uint64((1 << self.low) - 1), out=right)
        shifts = np.uint64(64 - self.high), np.uint64(64 - self.low)
        for i, key in enumerate(self.keys):
            np.bitwise_xor(right, np.uint64(key), out=z)
            np.multiply(z, _MIX1, out=z)
            np.right_shift(z, _32, out=x)
            np.bitwise_xor(z, x, out=z)
            np.multiply(z, _MIX2, out=z)
            np.right_shift(z, shifts[i % 2], out=z)
            np.bitwise_xor(left, z, out=left)
            left, right = right, left
        np.left_shift(left, low, out=x)
        np.bitwise_or(x, right, out=x)

    def place_of(self, element):
        """The position of an element, which is a Python integer below n."""
        while True:
            left, right = element >> self.low, element & ((1 << self.low) - 1)
            for i in reversed(range(len(self.keys))):
                if i % 2:
                    right ^= self._mixed(left, i)
                else:
                    left ^= self._mixed(right, i)
            element = left << self.low | right
            if element < self.n:
                return element

    def _mixed(self, half, i):
        z = ((half ^ self.keys[i]) * MIX1) & WORD
        z = ((z ^ (z >> 32)) * MIX2) & WORD
        return z >> (64 - (self.low if i % 2 else self.high))


class Order:
    """Says which records belong to which batch of an epoch. It is a function, so it can be continued anywhere.

    The records have the indexes 0..n-1. An epoch has a position for each of them, and global batch j consists of the
    positions from j*batch up to, but not including, (j+1)*batch. Of those, rank r takes the r-th of `world` parts. So
    the global batches are the same for any number of ranks and of workers.

    shuffle   "full" is a uniform permutation. "blocks" permutes runs of `block` records, and then the records within
              each `window` runs; it is for disks that seek. None keeps the order of the indexes.
    last      what becomes of the records behind the last whole batch: "short" gives them as a shorter batch, in which
              ranks may have different numbers of records, or none; "drop" leaves them out of this epoch; "wrap" fills
              the batch from the beginning of the epoch.
    """

    def __init__(self, n, seed=0, batch=1, rank=0, world=1, shuffle="full", last="short", *, block=1024, window=16):
        counts = dict(n=n, seed=seed, batch=batch, rank=rank, world=world, block=block, window=window)
        for name, value in counts.items():
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise TypeError(f"{name} is {value!r}: give a whole number")
            counts[name] = value = value.__index__()
            if value < (0 if name in ("n", "seed", "rank") else 1):
                raise ValueError(f"{name} is {value}: it cannot be below {0 if name in ('n', 'seed', 'rank') else 1}")
        self.__dict__.update(counts)
        self.shuffle, self.last = shuffle, last
        if self.n > 1 << 62:
            raise ValueError(f"n is {n}: it cannot be above 2^62")
        if self.seed > WORD:
            raise ValueError(f"seed is {seed}: it cannot be above 2^64-1")
        if self.rank >= self.world:
            raise ValueError(f"rank is {rank}, and world is {world}: ranks are 0 to {world - 1}")
        if self.batch < self.world:
            raise ValueError(f"batch is {batch}, and world is {world}: batch counts the records of all ranks together,"
                             " so it cannot be below world")
        if shuffle not in ("full", "blocks", None):
            raise ValueError(f'shuffle is {shuffle!r}: give "full", "blocks" or None')
        if last not in ("short", "drop", "wrap"):
            raise ValueError(f'last is {last!r}: give "short", "drop" or "wrap"')
        if last == "drop" and self.n < self.batch:
            raise ValueError(f'{n} records are fewer than a batch of {batch}: last="drop" would drop all of them')
        if last == "wrap" and self.n == 0:
            raise ValueError('last="wrap" cannot fill a batch: there are no records')
        self._ready = None

    def __len__(self):
        """The number of global batches in an epoch."""
        return self.n // self.batch if self.last == "drop" else -(-self.n // self.batch)

    @property
    def length(self):
        """The number of positions that the batches of an epoch have together."""
        return self.n if self.last == "short" else len(self) * self.batch

    def indexes(self, j, epoch=0):
        """The indexes of the records of global batch j that belong to this rank, in their order."""
        if not 0 <= j < len(self):
            raise IndexError(f"batch {j} of an epoch of {len(self)} batches")
        start = j * self.batch
        size = min(self.batch, self.length - start)
        first, stop = self.rank * size // self.world, (self.rank + 1) * size // self.world
        return self._positions(start + first, start + stop, epoch)

    def at(self, positions, epoch=0):
        """The indexes of the records at these positions of an epoch, which are below n."""
        positions = np.array(positions, np.int64, ndmin=1)
        if positions.size and not 0 <= positions.min() <= positions.max() < self.n:
            raise IndexError(f"a position is not within 0 to {self.n - 1}")
        if epoch < 0 or epoch > WORD:
            raise ValueError(f"epoch is {epoch}: it is a number from 0 to 2^64-1")
        if self.shuffle is None or self.n < 2:
            return positions
        if self.shuffle == "full":
            return Permutation(self.n, self.seed, epoch)(positions)
        return self._blocks(self._windows(positions, epoch), epoch)

    def epoch(self, epoch, start=0):
        """An iterable of the index arrays of this rank, from global batch `start` on: a sampler for torch's DataLoader
        with batch_size=None."""
        return Epoch(self, epoch, start)

    def _positions(self, start, stop, epoch):
        """The indexes at the positions from start to stop. Positions of at least n are those of the beginning."""
        parts = []
        while start < stop:
            chunk = start % self.n // READY
            first = chunk * READY
            if self._ready is None or self._ready[:2] != (epoch, chunk):
                # Batches follow each other, and many are smaller than what is permuted at a time.
                self._ready = epoch, chunk, self.at(np.arange(first, min(first + READY, self.n)), epoch)
            values = self._ready[2]
            at = start % self.n - first
            part = values[at : at + stop - start]
            parts.append(part)
            start += part.size
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _windows(self, positions, epoch):
        """Permutes positions within their windows."""
        size = self.block * self.window
        numbers = positions // size
        for number in np.unique(numbers):
            within = np.flatnonzero(numbers == number)
            start = int(number) * size
            shuffled = Permutation(min(size, self.n - start), self.seed, epoch, 2 + int(number))
            positions[within] = start + shuffled(positions[within] - start)
        return positions

    def _blocks(self, positions, epoch):
        """Maps places in permuted blocks to indexes. The last block may be shorter than the others: what lies behind it
        moves up."""
        blocks = Permutation(-(-self.n // self.block), self.seed, epoch, 1)
        short = -self.n % self.block
        end_of_last = (blocks.place_of(blocks.n - 1) + 1) * self.block - short
        positions = np.where(positions >= end_of_last, positions + short, positions)
        return blocks(positions // self.block) * self.block + positions % self.block

    def __getstate__(self):
        return {**self.__dict__, "_ready": None}

    def __repr__(self):
        fields = ("n", "seed", "batch", "rank", "world", "shuffle", "last")
        return f"Order({', '.join(f'{name}={getattr(self, name)!r}' for name in fields)})"


class Epoch:
    """The index arrays of one rank in one epoch."""

    def __init__(self, order, epoch, start):
        self.order, self.number, self.start = order, epoch, start

    def __len__(self):
        return max(0, len(self.order) - self.start)

    def __iter__(self):
        return (self.order.indexes(j, self.number) for j in range(self.start, len(self.order)))
