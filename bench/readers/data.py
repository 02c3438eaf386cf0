"""What readers of a bench share: the records, and checks of what was read."""

import itertools
import sys

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


def loaded_by_torch(ds, config, workers=2):
    """The same by torch's DataLoader, which is given whole batches of indexes."""
    torch_data()
    from sheafdb.ml import Order
    return taken_by_torch(ds, config, workers, sampler=Endless(Order(len(ds), config["seed"], BATCH, last="drop")))


def taken_by_torch(source, config, workers=2, **more):
    """The batches of what torch's DataLoader can read. Its workers are spawned: a store does not survive a fork."""
    prefetch = 2
    batches = iter(torch_data().DataLoader(source, batch_size=None, num_workers=workers, prefetch_factor=prefetch,
                                           collate_fn=same, multiprocessing_context="spawn", **more))
    return lambda: checked(map(len, next(batches)), config), {"ahead": workers * prefetch}


def torch_data():
    """torch.utils.data, from this environment or from Debian's package python3-torch."""
    debian = "/usr/lib/python3/dist-packages"
    try:
        import torch.utils.data
    except ImportError:
        if debian in sys.path:
            raise
        sys.path.append(debian)  # behind this environment, whose packages are used; workers get the same path
        import torch.utils.data
    return torch.utils.data


def same(batch):
    return batch


class Endless:
    """A sampler for torch: the batches of all epochs."""

    def __init__(self, order):
        self.order = order

    def __iter__(self):
        for epoch in itertools.count():
            yield from self.order.epoch(epoch)


def endless(source):
    while True:
        yield from source
