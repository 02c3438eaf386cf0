"""Records in Ray and in Spark, each in processes of its own on this machine. They take gigabytes and half a minute, so
only the soak installs them."""

import sys

import numpy as np
import pyarrow as pa
import pytest

import sheafdb.ray
import sheafdb.spark

N = 3000


@pytest.fixture(scope="module")
def store(secure):
    with secure.connect() as found:
        for group, ids in ("of-clusters", range(0, N, 2)), ("of-others", range(1, N, 2)):
            data = pa.array([b"%d" % i for i in ids], pa.binary())
            attributes = pa.array([[("kind", b"%d" % (i % 3))] for i in ids], pa.map_(pa.utf8(), pa.binary()))
            table = pa.table({"id": np.array(ids), "data": data, "attributes": attributes})
            assert found.put_many(table, group=group)["status"].null_count == N // 2
        yield found


GROUPS = ["of-clusters", "of-others"]


@pytest.mark.filterwarnings("ignore")
def test_ray(store):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        found = sheafdb.ray.read(store, GROUPS, columns=["data", "size"], override_num_blocks=2)
        assert found.schema().names == ["group", "id", "size", "status", "data"]
        with store.view(GROUPS) as view:
            seen = sheafdb.ray.read(store, columns=["data"], view=view)
            store.put_many(pa.table({"id": [0], "data": [b"later"]}), group="of-clusters")
            assert {row["id"]: row["data"] for row in seen.take_all()} == {i: b"%d" % i for i in range(N)}
        lengths = found.map_batches(lambda table: table.select(["size"]), batch_format="pyarrow").sum("size")
        assert lengths == sum(len(str(i)) for i in range(1, N)) + len("later")
        with pytest.raises(Exception, match="no-such-group"):
            sheafdb.ray.read(store, "no-such-group").take_all()
    finally:
        ray.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_spark(store, secure, monkeypatch):
    sql = pytest.importorskip("pyspark.sql")
    for name in "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON":
        monkeypatch.setenv(name, sys.executable)
    spark = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        sheafdb.spark.register(spark)
        facts = dict(address=secure.address, ca=secure.ca, cert=secure.cert, key=secure.key)
        with store.view(GROUPS) as view:
            frame = spark.read.format("sheaf").options(**facts, view=view.id).load()
            assert frame.columns == store.get_many([], "of-clusters").column_names
            rows = {row.id: row for row in frame.where("id < 10").collect()}
            assert sorted(rows) == list(range(10))
            assert bytes(rows[7].data) == b"7" and rows[7].attributes == {"kind": b"1"} and rows[7].crc32c > 0
            assert rows[7].group == "of-others" and rows[7].status is None and rows[7].commit_time.year >= 2020
            counts = frame.groupBy("group").count().collect()
            assert dict(map(tuple, counts)) == {group: N // 2 for group in GROUPS}
        few = spark.read.format("sheaf").options(**facts, groups="of-others, of-clusters", columns="size").load()
        assert few.columns == ["group", "id", "size", "status"] and few.where("id < 10").count() == 10
        for wrong, words in ({"collumns": "size"}, "no option 'collumns'"), ({"columns": "sise"}, "no column 'sise'"):
            with pytest.raises(Exception, match=words):
                spark.read.format("sheaf").options(**facts, **wrong).load().count()
    finally:
        spark.stop()
