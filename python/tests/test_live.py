"""Against `sheaf dev`: plain with Hash routing, and TLS with Named routing."""

import numpy as np
import pyarrow as pa
import pytest

import sheafdb
from conftest import Dev
from sheafdb import errors, ml

N = 3000


@pytest.fixture(scope="module")
def hashed(plain):
    with plain.connect() as store:
        data = pa.array([b"%d" % i * (i % 50) for i in range(N)], pa.binary())
        assert store.put_many(pa.table({"id": np.arange(N) - N // 2, "data": data}))["status"].null_count == N
        yield store


@pytest.fixture(scope="module")
def named(secure):
    with secure.connect() as store:
        for group in "ab":
            data = pa.array([f"{group}{i}".encode() for i in range(500)], pa.binary())
            answer = store.put_many(pa.table({"id": np.arange(500), "data": data}), group=group)
            assert answer["status"].null_count == 500
        yield store


def expected(id):
    i = id + N // 2
    return b"%d" % i * (i % 50)


def test_get(hashed):
    ids = np.random.default_rng(1).integers(-N // 2, N // 2, 5000)
    table = hashed.get_many(ids)
    assert table["id"].to_pylist() == ids.tolist() and table["status"].null_count == 5000
    assert table["data"].to_pylist() == [expected(i) for i in ids.tolist()]
    assert table["size"].to_pylist() == [len(expected(i)) for i in ids.tolist()]
    assert table.schema == sheafdb.store.SCHEMA
    absent = hashed.get_many([2**62, 0], columns=["data"])
    assert absent["status"].to_pylist() == ["RECORD_NOT_FOUND", None]
    assert absent.column_names == ["group", "id", "status", "data"]


def test_direct(plain, hashed):
    ids = np.arange(-N // 2, N // 2)
    with plain.connect(direct=True) as store:
        assert store.get_many(ids).equals(hashed.get_many(ids))
        assert store.routes()["mode"] == "hash" and store.routes()["hash_groups"] == 4


def test_groups_are_computed_as_the_store_does(hashed):
    ids = np.arange(-200, 200)
    assert hashed.get_many(ids, columns=[])["group"].to_pylist() == [str(g) for g in sheafdb.routing.group_of(ids, 4)]


def test_scan(hashed):
    table = hashed.scan(columns=["data"], split_bytes=1 << 20).read_all()
    found = dict(zip(table["id"].to_pylist(), table["data"].to_pylist()))
    assert len(table) == len(found) >= N
    assert all(found[i] == expected(i) for i in range(-N // 2, N // 2))
    assert sum(len(split.read().read_all()) for split in hashed.splits()) == len(table)


def test_puts_have_conditions(hashed):
    id, other = 10**12, 10**12 + 1
    row = {"id": [id], "data": [b"x"], "if_absent": [True]}
    assert hashed.put_many(pa.table(row))["status"].to_pylist() == [None]
    answer = hashed.put_many(pa.table({"id": [id, other], "data": [b"y", b"z"], "if_absent": [True, None]})).to_pylist()
    assert [a["status"] for a in answer] == ["RECORD_EXISTS", None]
    attributes = pa.array([[("colour", b"blue")]], pa.map_(pa.utf8(), pa.binary()))
    table = pa.table({"id": [id], "data": [b"y"], "attributes": attributes, "if_version": [answer[0]["version"]],
                      "timestamp": pa.array([5000], pa.timestamp("ns", "UTC"))})
    assert hashed.put_many(table)["status"].to_pylist() == [None]
    found = hashed.get_many([id])
    assert found["data"].to_pylist() == [b"y"] and found["attributes"].to_pylist() == [[("colour", b"blue")]]
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [5000]


def test_named_groups_over_tls(named):
    table = named.get_many([3, 499, 3], group=["b", "a", "a"])
    assert table["data"].to_pylist() == [b"b3", b"a499", b"a3"]
    assert named.get_many([1, 7], group="b", columns=["data"])["data"].to_pylist() == [b"b1", b"b7"]
    assert len(named.scan("a").read_all()) == 500 and len(named.scan().read_all()) == 1000
    with pytest.raises(errors.Error) as err:
        named.get_many([1])
    assert err.value.reason


def test_a_caller_without_a_certificate_is_refused(secure, named):
    with sheafdb.connect(secure.address, ca=secure.ca, timeout=2) as store:
        with pytest.raises(errors.Error):
            store.get_many([1], group="a")


def test_training(named, tmp_path):
    ids = named.ids(path=tmp_path / "ids")
    assert len(ids) == 1000 and ids.routing == "named" and ids.groups == ["a", "b"]
    sample = ml.Dataset(named, ids, columns=["data", "commit_time"])[600]
    assert sample["data"] == b"b100" and sample["commit_time"] > np.datetime64("2020-01-01")
    ds = ml.Dataset(named, ids)
    order = ml.Order(1000, seed=1, batch=64)
    with ml.loader(ds, order, workers=2) as loader:
        seen = [data for batch in loader for data in batch["data"].to_pylist()]
    assert sorted(seen) == sorted(f"{g}{i}".encode() for g in "ab" for i in range(500))
    numbers, values = ids.at(order.at(np.arange(1000)))
    assert seen == [f"{'ab'[g]}{i}".encode() for g, i in zip(numbers, values)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_store_that_is_killed_and_comes_back_changes_nothing(tmp_path, workers):
    dev = Dev(str(tmp_path / "dev"), "--groups", "2", "--shards", "1")
    try:
        with dev.connect() as store:
            data = pa.array([b"%d" % i for i in range(300)], pa.binary())
            assert store.put_many(pa.table({"id": np.arange(300), "data": data}))["status"].null_count == 300
            ids, order = store.ids(), ml.Order(300, seed=1, batch=20)
            seen = []
            with ml.loader(ml.Dataset(store, ids), order, workers, prefetch=1) as loader:
                for number, batch in enumerate(loader):
                    seen += batch["data"].to_pylist()
                    if number == 4:
                        dev.stop(kill=True)
                        dev.start()
            assert seen == [b"%d" % i for i in ids.values[order.at(np.arange(300))]]
            # A put on the connections of before the kill.
            assert store.put_many(pa.table({"id": [1], "data": [b"new"]}))["status"].to_pylist() == [None]
            assert store.get_many([1])["data"].to_pylist() == [b"new"]
    finally:
        dev.stop()
