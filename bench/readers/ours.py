"""Readers of the store: sheafdb, and plain clients of gRPC and Flight."""

import os
import time

from data import BATCH, checked_column, draws, loaded, loaded_by_torch


def store_of(config):
    """The store, whose shard is read itself if the config says so."""
    import sheafdb
    return sheafdb.connect(config["address"], direct=config.get("direct", False))


def get_many(config):
    """Random batches. With `keep`, malloc of this process keeps freed memory, as in workers of the loader."""
    store, draw = store_of(config), draws(config)
    first = config["first"]
    if config.get("keep"):
        from sheafdb import memory
        if not memory.keep_freed():
            raise ImportError("malloc is not that of glibc, or has settings")

    def step():
        table = store.get_many(first + draw(), columns=["data"])
        if table["status"].null_count != BATCH:
            raise ValueError(f"records are missing: {table['status'].unique()}")
        return checked_column(table["data"], config)
    return step, {}


def grpc_batch_get(config):
    """The same batches by BatchGet of grpcio, whose messages are made from the descriptors of the contract."""
    import grpc
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    with open(config["descriptors"], "rb") as file:
        files = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for one in files.file:
        pool.Add(one)
    request, response = (message_factory.GetMessageClass(pool.FindMessageTypeByName(f"sheaf.record.v1.BatchGet{kind}"))
                         for kind in ("Request", "Response"))
    channel = grpc.insecure_channel(config["shard"], [("grpc.max_receive_message_length", 16 << 20)])
    call = channel.unary_stream("/sheaf.record.v1.RecordService/BatchGet", request_serializer=request.SerializeToString,
                                response_deserializer=response.FromString)
    first, draw, size = config["first"], draws(config), config["size"]

    def step():
        count = 0
        ids = (first + draw()).tolist()
        for answer in call(request(gets=[{"key": {"id": id}} for id in ids])):
            for result in answer.results:
                if len(result.record.data) != size:
                    raise ValueError(f"a record cannot be read: {result.status}")
                count += 1
        if count != BATCH:
            raise ValueError(f"{count} records came of {BATCH}")
        return count
    return step, {}


def scan(config):
    """All columns of all records, one part after another."""
    store = store_of(config)
    return lambda: whole(sum(batch.num_rows for batch in store.scan(parallel=1)), config), {}


def flight_scan(config):
    """The same batches from a server that does nothing else."""
    from pyarrow import flight
    client = flight.connect(f"grpc+tcp://{config['address']}")
    return lambda: whole(sum(chunk.data.num_rows for chunk in client.do_get(flight.Ticket(b""))), config), {}


def whole(count, config):
    if count != config["records"]:
        raise ValueError(f"a scan has {count} records of {config['records']}")
    return count


def data_of(table):
    return table["data"].to_pylist()


def store_loader(config):
    return loaded(data_set(config), config, config.get("workers", 2))


def store_torch(config):
    return loaded_by_torch(data_set(config), config)


def data_set(config):
    from sheafdb.ml import Dataset
    store = store_of(config)
    return Dataset(store, store.ids(path=f"{config['dir']}/loader-{os.getpid()}.ids"), columns=["data"], decode=data_of)


def order(config):
    """Indexes of a shuffled order of a billion records."""
    from sheafdb.ml import Order
    whole, at = Order(10**9, seed=config["seed"], batch=1 << 16), iter(range(10**9))
    return lambda: len(whole.indexes(next(at))), {}


def first_batch(config):
    """From a store to the first batch of a shuffled data set: the ids are scanned and written to a file."""
    from sheafdb.ml import Dataset, Order, loader

    def step():
        with store_of(config) as store:
            path = f"{config['dir']}/first-{time.monotonic_ns()}.ids"
            ds = Dataset(store, store.ids(path=path), columns=["data"], decode=data_of)
            batch = next(iter(loader(ds, Order(whole(len(ds), config), seed=config["seed"], batch=BATCH))))
            os.remove(path)
            return len(batch) // BATCH
    return step, {}


def scan_of_ids(config):
    """What a data set reads before its first batch, and nothing else."""
    def step():
        with store_of(config) as store:
            whole(sum(batch.num_rows for batch in store.scan(columns=[], parallel=4)), config)
            return 1
    return step, {}


READERS = {
    "get_many": get_many,
    "grpcio": grpc_batch_get,
    "scan": scan,
    "flight scan": flight_scan,
    "store loader": store_loader,
    "store torch": store_torch,
    "order": order,
    "first batch": first_batch,
    "scan of ids": scan_of_ids,
}
