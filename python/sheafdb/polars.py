"""Records as a LazyFrame of Polars."""

from .needs import needed
from .store import EMPTY, checked_columns, selected


def scan(store, groups=None, columns=None, *, view=None, parallel=2, split_bytes=None):
    """A polars.LazyFrame of the newest version of all records of these groups, or of all groups. Only the columns that
    a query needs are read, and reading ends when a query has enough rows. Each collect scans the store anew: give a
    view, or its id, if all of them must see the same records.

    The arguments are those of Store.scan.
    """
    polars = needed("polars", "polars", "sheafdb.polars.scan")
    register = needed("polars.io.plugins", "polars", "sheafdb.polars.scan").register_io_source
    empty = polars.from_arrow(selected(EMPTY, checked_columns(columns)))

    def source(with_columns, predicate, rows, _):
        read = empty.columns if with_columns is None else list(with_columns)
        for batch in store.scan(groups, read, parallel, split_bytes, view):
            if rows is not None:
                batch = batch.slice(0, rows)
                rows -= batch.num_rows
            frame = polars.from_arrow(batch.select(read), rechunk=False)
            yield frame if predicate is None else frame.filter(predicate)
            if rows is not None and rows <= 0:
                break

    return register(source, schema=empty.schema)
