"""Readers of local files, and the servers that show what gRPC and Flight cost without a store."""

import io
import multiprocessing
import os
import tarfile

from data import (BATCH, TARS, checked, checked_column, draws, endless, loaded, loaded_by_torch, taken_by_torch,
                  torch_data)


def prepare(config):
    """Writes the records as all these files. Each format is that with the fastest random reads."""
    dir, size, n = config["dir"], config["size"], config["records"]
    os.makedirs(f"{dir}/files", exist_ok=True)
    records = [os.urandom(size) for _ in range(n)]
    for i, data in enumerate(records):
        with open(f"{dir}/files/{i}", "wb") as file:
            file.write(data)
    for t in range(TARS):
        with tarfile.open(f"{dir}/{t}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(t, n, TARS):
                member = tarfile.TarInfo(f"{i}.bin")
                member.size = size
                tar.addfile(member, io.BytesIO(records[i]))
    facts = {}
    for write in (prepare_array_record, prepare_lance):
        try:
            write(dir, records)
        except ImportError as err:
            facts[write.__name__] = str(err)  # its reader says so
    return None, facts


def prepare_array_record(dir, records):
    from array_record.python.array_record_module import ArrayRecordWriter
    writer = ArrayRecordWriter(f"{dir}/array_record", "group_size:1,uncompressed")
    for data in records:
        writer.write(data)
    writer.close()


def prepare_lance(dir, records):
    import lance
    import pyarrow as pa
    table = pa.table({"id": pa.array(range(len(records))), "data": pa.array(records, pa.large_binary())})
    lance.write_dataset(table, f"{dir}/lance")


def array_record(config):
    from array_record.python.array_record_module import ArrayRecordReader
    reader, draw = ArrayRecordReader(f"{config['dir']}/array_record"), draws(config)
    return lambda: checked(map(len, reader.read(draw().tolist())), config), {}


def lance(config):
    import lance
    ds, draw = lance.dataset(f"{config['dir']}/lance"), draws(config)
    return lambda: checked_column(ds.take(draw(), columns=["data"])["data"], config), {}


class Files:
    """A file for each record, as a data set of the loader."""

    digest = "files"

    def __init__(self, config):
        self.dir, self.records = config["dir"], config["records"]

    def __len__(self):
        return self.records

    def __getitem__(self, indexes):
        found = []
        for i in indexes:
            with open(f"{self.dir}/files/{i}", "rb") as file:
                found.append(file.read())
        return found


class Tars(Files):
    """Tar files in order, by WebDataset. Each of the two workers of the loader reads its own files over and over, so
    the indexes do not matter."""

    digest, source = "tars", None

    def __getitem__(self, indexes):
        if self.source is None:
            import webdataset
            worker = int(multiprocessing.current_process().name[-1])
            tars = [f"{self.dir}/{t}.tar" for t in range(worker, TARS, 2)]
            self.source = endless(webdataset.WebDataset(tars, shardshuffle=False))
        return [next(self.source)["bin"] for _ in range(BATCH)]


def webdataset_torch(config):
    torch_data()  # before webdataset, which looks for it
    import webdataset
    tars = [f"{config['dir']}/{t}.tar" for t in range(TARS)]
    return taken_by_torch(webdataset.WebDataset(tars, shardshuffle=False).repeat().batched(BATCH, collation_fn=bins),
                          config)


def bins(samples):
    return [sample["bin"] for sample in samples]


def webdataset(config):
    import webdataset  # noqa: F401, the workers need it
    return loaded(Tars(config), config)


def bare_flight(config):
    """A server of pyarrow that has the batches of a scan of the store in memory, and one client."""
    import ours
    import pyarrow as pa
    from pyarrow import flight
    with ours.store_of(config) as store:
        table = pa.Table.from_batches(list(store.scan()))

    class Server(flight.FlightServerBase):
        def do_get(self, context, ticket):
            return flight.RecordBatchStream(table)

    server = Server("grpc+tcp://127.0.0.1:0")  # it serves until the process ends
    return None, {"address": f"127.0.0.1:{server.port}"}


READERS = {
    "prepare": prepare,
    "array_record": array_record,
    "lance": lance,
    "files loader": lambda config: loaded(Files(config), config),
    "webdataset loader": webdataset,
    "files torch": lambda config: loaded_by_torch(Files(config), config),
    "webdataset torch": webdataset_torch,
    "bare flight": bare_flight,
}
