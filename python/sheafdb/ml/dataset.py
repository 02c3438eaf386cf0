"""Records as a data set: a length, and samples by their index."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import IdsError, Missing
from ..view import View

# Statuses of records that are no longer in the store.
GONE = ("RECORD_NOT_FOUND", "GROUP_NOT_FOUND")


class Dataset:
    """Samples by index, read from a store when they are asked for.

    store    a View; or a store, or what else has get_many(ids, group=, columns=) -> pyarrow.Table and can be pickled
    ids      the sheafdb.Ids of the data set; index i is the i-th of them. Of a view, None means all its ids
    columns  what is read of each record; group, id and status are always there
    decode   makes a batch of a pyarrow.Table. Without it, a batch is the table
    missing  "raise": a record that was deleted since is an error. "skip": it is left out, and a batch is shorter
    """

    def __init__(self, store, ids=None, columns=("data",), decode=None, missing="raise"):
        if missing not in ("raise", "skip"):
            raise ValueError(f'missing is {missing!r}: give "raise" or "skip"')
        if isinstance(columns, str):
            raise TypeError(f"columns is {columns!r}: give a list of names")
        view = store.id if isinstance(store, View) else ""
        if ids is None and not view:
            raise TypeError("ids is None: give ids, or a view instead of the store")
        if ids is None:
            ids = store.ids()
        if ids.view and ids.view != view:
            # The digest of the ids stands for the bytes of a view.
            read = f"view {view}" if view else "the newest versions"
            raise IdsError(f"{ids.path or 'the ids'}: of view {ids.view}, and {read} would be read: give that view")
        self.store, self.ids, self.columns, self.decode, self.missing = store, ids, list(columns), decode, missing

    @property
    def digest(self):
        """Identifies the ids and their order."""
        return self.ids.digest

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        """The batch at an array, list or slice of indexes, in their order; or one sample at a number."""
        if isinstance(index, slice):
            index = np.arange(*index.indices(len(self)))
        elif np.ndim(index) == 0:
            i = index.__index__()
            if not -len(self) <= i < len(self):
                raise IndexError(f"index {i} of a data set of {len(self)} samples")
            return self._first(self._decoded(self.table([i % len(self)])), i)
        return self._decoded(self.table(index))

    def table(self, indexes):
        """The records at an array of indexes, in their order, before they are decoded."""
        numbers, ids = self.ids.at(indexes)
        names = self.ids.groups
        group = None if self.ids.routing == "hash" else [names[number] for number in numbers]
        table = self.store.get_many(ids, group=group, columns=self.columns)
        status = table["status"]
        if status.null_count == len(table):
            return table
        bad = pc.is_valid(status)
        if "data" not in self.columns:
            bad = pc.and_(bad, pc.not_equal(pc.fill_null(status, ""), "USE_DOWNLOAD"))
        gone = pc.is_in(status, value_set=pa.array(GONE))
        if self.missing == "skip":
            bad = pc.and_(bad, pc.invert(gone))
        if pc.any(bad).as_py():
            raise Missing(_words(table.filter(bad)))
        return table.filter(pc.invert(gone))

    def _decoded(self, table):
        return table if self.decode is None else self.decode(table)

    def _first(self, batch, i):
        if isinstance(batch, pa.Table):
            if len(batch) == 0:
                raise Missing(f"sample {i} was deleted", "RECORD_NOT_FOUND")
            return {name: value_of(batch[name][0]) for name in batch.column_names}
        if isinstance(batch, dict):
            return {name: values[0] for name, values in batch.items()}
        return batch[0]


def value_of(scalar):
    # The datetime of Python has no nanoseconds.
    if pa.types.is_timestamp(scalar.type):
        return np.datetime64("NaT" if scalar.value is None else scalar.value, scalar.type.unit)
    return scalar.as_py()


def _words(bad):
    rows = bad.select(["group", "id", "status"]).slice(0, 3).to_pylist()
    words = ", ".join(f"id {row['id']} of group {row['group']}: {row['status']}" for row in rows)
    more = f", and {len(bad) - 3} more" if len(bad) > 3 else ""
    return f"{len(bad)} records cannot be read: {words}{more}"
