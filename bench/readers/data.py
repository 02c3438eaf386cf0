"""What readers of a bench share: the records, and checks of what was read."""

BATCH = 100
# Tar files. A loader of two processes needs at least two.
TARS = 8


def draws(config):
    """A function that gives the numbers of a random batch."""
    import numpy as np
    random = np.random.default_rng(config["seed"])
    return lambda: random.integers(0, config["records"], BATCH)


def checked(sizes, config):
    """The number of records, all of which must have the right size."""
    count = 0
    for size in sizes:
        if size != config["size"]:
            raise ValueError(f"a record has {size} bytes, not {config['size']}")
        count += 1
    if count != BATCH:
        raise ValueError(f"a batch has {count} records, not {BATCH}")
    return count


def checked_column(column, config):
    """The same for a column of Arrow, without an object for each record."""
    import pyarrow.compute as pc
    sizes = pc.min_max(pc.binary_length(column)).as_py()
    if sizes != {"min": config["size"], "max": config["size"]} or column.null_count:
        raise ValueError(f"records have {sizes} bytes, not {config['size']}")
    return len(column)


def loaded(ds, config, workers=2):
    """The next batch of BATCH records by the loader of sheafdb, with workers that read ahead. What they have read before
    a turn does not count in it."""
    from sheafdb.ml import Order, loader
    prefetch = 2
    batches = endless(loader(ds, Order(len(ds), config["seed"], BATCH, last="drop"), workers, prefetch))
    return lambda: checked(map(len, next(batches)), config), {"ahead": workers * prefetch}


def endless(source):
    while True:
        yield from source
