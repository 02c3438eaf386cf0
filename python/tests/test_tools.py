"""Small jobs of DuckDB, Polars, pandas and torch on a store. Each is left out where the library is not installed; the
soak installs the first three, and takes torch where the system has it."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest

from sheafdb import ml

N = 2000


@pytest.fixture(scope="module")
def store(plain):
    with plain.connect() as found:
        data = pa.array([bytes([i % 7]) * (i % 100) for i in range(N)], pa.binary())
        attributes = pa.array([[("kind", b"%d" % (i % 3))] for i in range(N)], pa.map_(pa.utf8(), pa.binary()))
        ids = np.arange(N) + 10**15
        table = pa.table({"id": ids, "data": data, "attributes": attributes})
        assert found.put_many(table)["status"].null_count == N
        yield found


def test_duckdb(store):
    duckdb = pytest.importorskip("duckdb")
    records = store.scan(columns=["size", "data", "attributes", "commit_time"])
    rows = duckdb.sql(f"""
        SELECT attributes['kind']::VARCHAR AS kind, count(*), sum(octet_length(data)), sum(size) FROM records
        WHERE id >= {10**15} AND commit_time > TIMESTAMP '2020-01-01' GROUP BY kind ORDER BY kind""").fetchall()
    assert [(count, octets, size) for _, count, octets, size in rows] == [
        (len(range(k, N, 3)),) + (sum(i % 100 for i in range(k, N, 3)),) * 2 for k in range(3)]


def test_polars(store):
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(store.scan(columns=["data", "size"]).read_all()).filter(polars.col("id") >= 10**15)
    assert frame.height == N
    assert frame.select(polars.col("data").bin.size().sum(), polars.col("size").sum()).row(0) == (
        sum(i % 100 for i in range(N)),) * 2


def test_pandas(store):
    pandas = pytest.importorskip("pandas")
    frame = store.get_many(np.arange(N) + 10**15).to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == N
    digests = frame["data"].map(lambda data: hashlib.sha256(data).hexdigest())
    assert digests.iloc[-1] == hashlib.sha256(bytes([(N - 1) % 7]) * ((N - 1) % 100)).hexdigest()
    assert (frame["commit_time"] > pandas.Timestamp("2020-01-01", tz="UTC")).all()


def ids_of(table):
    return table["id"].to_numpy()


def test_torch(store):
    torch = pytest.importorskip("torch")
    ids = store.ids()
    ids = ids.select(ids.values >= 10**15)
    ds, order = ml.Dataset(store, ids, decode=ids_of), ml.Order(N, seed=3, batch=128)
    expected = [ids.values[order.indexes(j, 2)].tolist() for j in range(len(order))]
    for workers in (0, 2):
        batches = torch.utils.data.DataLoader(ds, sampler=order.epoch(2), batch_size=None, num_workers=workers,
                                              multiprocessing_context="spawn" if workers else None)
        assert [batch.tolist() for batch in batches] == expected
