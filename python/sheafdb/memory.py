"""Memory that malloc of glibc keeps for the messages of gRPC.

gRPC takes the memory of each message from malloc. By default, malloc gives blocks of this size back to the system,
which then has to map and clear each page again: half of the time of a reader of large batches.
"""

import ctypes
import functools
import os

import numpy as np

# Bytes of the block that learn frees.
BLOCK = 16 << 20
# Parameters of mallopt (malloc.h of glibc), and their values in bytes. A block below the first is not mapped by itself,
# and free memory below the second is not given back to the system.
VALUES = ((-3, 32 << 20), (-1, 256 << 20))


@functools.cache
def learn():
    """Lets malloc of glibc keep up to 32 MiB of what this process frees, by one block of 16 MiB that is freed at once.

    malloc learns: once a program has freed a block that was mapped by itself, malloc takes blocks up to this size from
    its heap, and keeps twice as much free memory at the end of each heap (threads may have heaps of their own). A program
    that has freed an array of this size has done the same. No page of the block is touched. Where the environment sets
    one of these limits, and without glibc, nothing changes.
    """
    np.empty(BLOCK, np.uint8)


def keep_freed():
    """Lets malloc of glibc keep the memory that this process frees, up to 256 MiB, and reports whether it does so.

    Without glibc, or where the environment has values of its own, nothing is changed.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # no other library has it
        mallopt = library.mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return all([mallopt(name, value) == 1 for name, value in VALUES])
