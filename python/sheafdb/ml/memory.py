"""Memory of worker processes."""

import ctypes
import os

# Parameters of mallopt (malloc.h of glibc), and their values in bytes. A block below the first is not mapped by itself,
# and free memory below the second is not given back to the system.
VALUES = ((-3, 32 << 20), (-1, 256 << 20))


def keep_freed():
    """Lets malloc of glibc keep the memory that this process frees, up to 256 MiB, and reports whether it does so.

    gRPC takes the memory of each message from malloc. By default, malloc gives blocks of this size back to the system,
    which then has to map and clear each page again: half of the time of a reader of large batches. Without glibc, or
    where the environment has values of its own, nothing is changed.
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
