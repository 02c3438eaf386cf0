"""A store in memory, and functions that workers import."""

import numpy as np
import pyarrow as pa

from sheafdb.ids import Ids

SCHEMA = pa.schema([
    pa.field("group", pa.utf8(), False), pa.field("id", pa.int64(), False), ("version", pa.utf8()),
    ("timestamp", pa.timestamp("ns", "UTC")), ("commit_time", pa.timestamp("ns", "UTC")),
    ("attributes", pa.map_(pa.utf8(), pa.binary())), ("size", pa.int64()), ("crc32c", pa.uint32()),
    ("status", pa.utf8()), ("data", pa.large_binary()),
])


class Model:
    """Each record's data are its group and id, except for the statuses that are given by id."""

    def __init__(self, statuses=None, fails_at=None):
        self.statuses, self.fails_at = statuses or {}, fails_at

    def get_many(self, ids, group=None, columns=None):
        groups = [group] * len(ids) if isinstance(group, str) or group is None else list(group)
        if self.fails_at in ids:
            raise OSError(f"cannot read {self.fails_at}")
        status = [self.statuses.get(int(i)) for i in ids]
        data = [None if s or "data" not in columns else f"{g}/{i}".encode() for g, i, s in zip(groups, ids, status)]
        full = dict(group=[g or "0" for g in groups], id=ids, status=status, data=data)
        none = [None] * len(ids)
        return pa.table([pa.array(full.get(field.name, none), field.type) for field in SCHEMA], schema=SCHEMA)


def ids_of(n, groups=3):
    """n ids in groups, with gaps."""
    return Ids.of({f"g{g}": np.arange(g, n, groups) * 7 - 1000 for g in range(groups)}, store="model")


def decode_ids(table):
    return table["id"].to_numpy()


def decode_dict(table):
    return {"x": table["id"].to_numpy(), "size": [len(d) for d in table["data"].to_pylist()]}


def end_at_40(table):
    import os
    if (table["id"].to_numpy() == 40).any():
        os._exit(3)
    return table["id"].to_numpy()


def page_faults(table):
    """The pages that this process gets from the system when it takes and frees 16 blocks of 1 MiB once more."""
    import ctypes
    import resource
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [libc.malloc(1 << 20) for _ in range(16)]
        for block in blocks:
            ctypes.memset(block, 1, 1 << 20)
        for block in blocks:
            libc.free(block)
    return [resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before] * len(table)
