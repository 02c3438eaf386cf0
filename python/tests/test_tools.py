"""Small jobs of DuckDB, Polars, pandas, WebDataset, Grain and torch on a store. Each is left out where the library is
not installed: Grain is among what the soak installs, and torch comes from the system."""

import contextlib
import hashlib
import sys
import tarfile

import numpy as np
import pyarrow as pa
import pytest

import sheafdb.polars
import sheafdb.ray
import sheafdb.spark
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


def test_polars_scans(store):
    polars = pytest.importorskip("polars")
    frame = sheafdb.polars.scan(store)
    assert frame.collect_schema() == polars.from_arrow(store.get_many([])).schema
    ours = frame.filter(polars.col("id") >= 10**15)
    bytes = polars.col("data").bin.size().sum()
    with asked(store) as columns:
        sums = [ours.select(bytes.alias("data")), ours.select(polars.col("size").sum()), ours.select(polars.len())]
        sums = [one.item() for one in polars.collect_all(sums)]  # several scans at once
    assert sums == [sum(i % 100 for i in range(N))] * 2 + [N]
    assert sorted(columns) == [["data", "id"], ["id"], ["id", "size"]]
    for engine in ("in-memory", "streaming"):
        kinds = ours.group_by(polars.col("size") % 2 == 0).agg(polars.len()).collect(engine=engine)
        assert kinds["len"].to_list() == [N // 2, N // 2]
        assert ours.head(7).collect(engine=engine).height == 7
        assert frame.head(5).filter(polars.col("id") >= 0).collect(engine=engine).height <= 5
    attributes = ours.filter(polars.col("id") == 10**15 + 5).collect()["attributes"].to_list()
    assert attributes == [{"kind": b"2"}]
    few = sheafdb.polars.scan(store, columns=["size"], parallel=1)
    assert few.collect_schema().names() == ["group", "id", "size", "status"]
    with store.view() as view:
        seen = sheafdb.polars.scan(store, columns=[], view=view)
        known = seen.collect().height
        store.put_many(pa.table({"id": [-7], "data": [b"later"]}))
        assert seen.collect().height == known
    with pytest.raises(ValueError, match="no column 'nothing'"):
        sheafdb.polars.scan(store, columns=["nothing"])


@contextlib.contextmanager
def asked(store):
    """The columns of the scans behind it."""
    columns, splits = [], store.splits
    store.splits = lambda groups, names, *more: columns.append(sorted(names)) or splits(groups, names, *more)
    try:
        yield columns
    finally:
        del store.splits


def test_pandas(store):
    pandas = pytest.importorskip("pandas")
    frame = store.get_many(np.arange(N) + 10**15).to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == N
    digests = frame["data"].map(lambda data: hashlib.sha256(data).hexdigest())
    assert digests.iloc[-1] == hashlib.sha256(bytes([(N - 1) % 7]) * ((N - 1) % 100)).hexdigest()
    assert (frame["commit_time"] > pandas.Timestamp("2020-01-01", tz="UTC")).all()


def test_a_library_that_is_missing_is_named(monkeypatch):
    for name in ("polars", "ray", "ray.data", "pyspark.sql.datasource"):
        monkeypatch.setitem(sys.modules, name, None)
    store = sheafdb.connect("127.0.0.1:1")
    for call, package in ((lambda: sheafdb.polars.scan(store), "polars"),
                          (lambda: sheafdb.ray.read(store), r"ray\[data\]"),
                          (lambda: sheafdb.spark.register(None), "pyspark")):
        with pytest.raises(ImportError, match=f"pip install {package}$"):
            call()


def test_webdataset(store, plain):
    webdataset = pytest.importorskip("webdataset")
    rows = store.scan(columns=["size"]).read_all().to_pylist()
    known = {f"{row['group']}/{row['id']}": row["size"] for row in rows}
    url = f"http://{plain.http}/v1/scan.tar?split={{0..3}}/4"
    seen = {s["__key__"]: len(s["bin"]) for s in webdataset.WebDataset(f"pipe:curl -sf '{url}'", shardshuffle=False)}
    assert seen == known and len(seen) >= N
    with pytest.raises((OSError, tarfile.ReadError)):  # curl has failed, or the archive is empty: what is seen first
        list(webdataset.WebDataset(f"pipe:curl -sf 'http://{plain.http}/v1/scan.tar?view=x'", shardshuffle=False))


def test_grain(store):
    grain = pytest.importorskip("grain")
    ids = store.ids()
    ids = ids.select(ids.values >= 10**15).select(np.arange(200))
    ds = ml.Dataset(store, ids, columns=["size"])
    assert isinstance(ds, grain.sources.RandomAccessDataSource)
    batches = grain.MapDataset.source(ds).shuffle(seed=3).map(lambda sample: sample["id"]).batch(64)
    assert sorted(np.concatenate(list(batches)).tolist()) == sorted(ids.values.tolist())


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
