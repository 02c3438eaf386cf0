"""Calls of a store, against a server that fails by a script."""

import multiprocessing
import os
import pickle
import signal

import numpy as np
import pyarrow as pa
import pytest

import sheafdb
from fake import Fake, fail
from sheafdb import errors, put

@pytest.fixture
def server():
    with Fake() as fake:
        fake.records = {("0", i): f"data {i}".encode() for i in range(20)}
        yield fake


@pytest.fixture
def store(server):
    with sheafdb.connect(server.address, timeout=60) as found:
        yield found


def get(server, *steps):
    server.script["get"] = list(steps)


def test_rows_come_in_the_order_of_the_ids(store):
    ids = [7, 3, 3, 99, 0, 19, 18, 17, 1]
    table = store.get_many(ids)
    assert table["id"].to_pylist() == ids
    assert table["status"].to_pylist() == [None] * 3 + ["RECORD_NOT_FOUND"] + [None] * 5
    assert table["data"].to_pylist() == [None if i == 99 else f"data {i}".encode() for i in ids]
    assert table.schema == sheafdb.store.SCHEMA
    assert store.get_many(np.array([5], np.uint8), columns=["size"]).to_pylist() == [
        {"group": "0", "id": 5, "size": 6, "status": None}]
    assert store.get_many([]).num_rows == 0 and store.get_many([], columns=[]).column_names == ["group", "id", "status"]


def test_both_ends_of_the_ids(server, store):
    server.records["0", -(2**63)] = b"low"
    server.records["0", 2**63 - 1] = b"high"
    assert store.get_many([2**63 - 1, -(2**63)])["data"].to_pylist() == [b"high", b"low"]


@pytest.mark.parametrize("ids, kind", [
    ([1.5], TypeError), (["1"], TypeError), ([[1]], TypeError), ([2**63], ValueError), ([True], TypeError),
])
def test_what_is_no_id_is_refused(store, ids, kind):
    with pytest.raises(kind):
        store.get_many(ids)


def test_columns_that_do_not_exist_are_refused(store):
    for columns in (["no"], "data"):
        with pytest.raises((ValueError, TypeError)):
            store.get_many([1], columns=columns)


def test_many_ids_are_several_calls(server, store, monkeypatch):
    monkeypatch.setattr("sheafdb.store.CALL", 3)
    ids = list(range(19, -1, -1)) * 2
    assert store.get_many(ids)["id"].to_pylist() == ids
    assert len(server.calls) == 14


def test_a_group_for_each_id(server, store):
    server.mode = "named"
    server.records = {("a", 1): b"a1", ("b", 1): b"b1", ("b", 2): b"b2"}
    table = store.get_many([1, 2, 1, 1], group=["b", "b", "a", "b"])
    assert table["data"].to_pylist() == [b"b1", b"b2", b"a1", b"b1"]
    assert table["group"].to_pylist() == ["b", "b", "a", "b"]
    assert store.get_many([1], group="a")["data"].to_pylist() == [b"a1"]
    for group in (["a"], ["a", None]):
        with pytest.raises(ValueError):
            store.get_many([1, 1], group=group)


@pytest.mark.parametrize("reason, kind", [
    ("GROUP_NOT_FOUND", "missing"), ("PERMISSION_DENIED", "denied"), ("GROUP_FAILED", "invalid"),
])
def test_what_is_wrong_with_one_group_concerns_its_rows(server, store, reason, kind):
    server.records = {("a", 1): b"a1"}

    def step(command):
        if command[0]["group"] == "b":
            fail(f"[{reason}] of b", kind)(None)

    get(server, step, step, step)
    table = store.get_many([1, 1, 2], group=["b", "a", "b"])
    assert table["status"].to_pylist() == [reason, None, reason] and table["data"].to_pylist() == [None, b"a1", None]
    assert table["group"].to_pylist() == ["b", "a", "b"] and table["id"].to_pylist() == [1, 1, 2]
    with pytest.raises(errors.Error, match=reason):
        store.get_many([1, 1], group="b")


def test_a_stream_that_breaks_goes_on_behind_its_rows(server, store):
    get(server, 2, 0, 1)
    ids = list(range(20))
    assert store.get_many(ids)["id"].to_pylist() == ids
    assert [len(asked) for _, (_, asked) in server.calls] == [20, 12, 12, 8]


def test_rows_that_cannot_be_read_now_are_asked_for_again(server, store):
    get(server, {3: "WRONG_SHARD", 5: "NO_LEADER"}, {3: "GROUP_LOADING"})
    ids = [5, 3, 2, 3, 1]
    assert store.get_many(ids)["data"].to_pylist() == [f"data {i}".encode() for i in ids]
    assert [asked for _, (_, asked) in server.calls] == [ids, [5, 3, 3], [3, 3]]


def up_after(monkeypatch, attempts):
    """The time of calls is up after this many attempts."""
    left = [attempts]

    def wait(*_):
        left[0] -= 1
        return left[0] > 0

    monkeypatch.setattr("sheafdb.wire.Attempts.wait", wait)


@pytest.mark.parametrize("then", [{3: "GROUP_LOADING"}, fail("reset"), 0])
def test_rows_keep_their_status_when_the_time_is_up(server, store, monkeypatch, then):
    up_after(monkeypatch, 3)
    get(server, {3: "NO_LEADER", 4: "NO_LEADER"}, {3: "GROUP_LOADING"}, then)
    table = store.get_many([3, 1, 4, 3])
    assert table["id"].to_pylist() == [3, 1, 4, 3]
    assert table["status"].to_pylist() == ["GROUP_LOADING", None, None, "GROUP_LOADING"]


def test_rows_without_an_answer_are_an_error_when_the_time_is_up(server, store, monkeypatch):
    up_after(monkeypatch, 2)
    get(server, 1, fail("[STOPPING] no"))
    with pytest.raises(errors.Unavailable, match="STOPPING"):
        store.get_many([1, 2, 4, 5, 6, 7])


@pytest.mark.parametrize("text, kind, expected", [
    ("[QUOTA_EXCEEDED] tenant a is beyond", "internal", errors.QuotaExceeded),
    ("[INVALID_ARGUMENT] get: no", "invalid", errors.Invalid),
    ("[GROUP_NOT_FOUND] no group", "missing", errors.NotFound),
    ("[PERMISSION_DENIED] no grant", "denied", errors.Denied),
    ("[GROUP_FAILED] repair it", "internal", errors.Error),
    ("[DAMAGED] bytes", "internal", errors.Damaged),
])
def test_errors_that_stay(server, store, text, kind, expected):
    get(server, fail(text, kind))
    with pytest.raises(expected) as err:
        store.get_many([1])
    assert type(err.value) is expected and err.value.reason == text[1 : text.index("]")]
    assert str(err.value) == f"get of 1 ids: {text}"
    assert len(server.calls) == 1
    copy = pickle.loads(pickle.dumps(err.value))
    assert type(copy) is expected and copy.reason == err.value.reason and str(copy) == str(err.value)


@pytest.mark.parametrize("text, kind", [
    ("[NO_LEADER] wait", "unavailable"), ("[WRONG_SHARD] (address=10.0.0.1:7400 routing_epoch=3) no", "invalid"),
    ("[OVERLOADED] (retry_after_ms=20) full", "internal"), ("[QUOTA_EXCEEDED] (retry_after_ms=20) slow", "internal"),
    ("connection reset", "unavailable"), ("deadline", "slow"),
])
def test_errors_that_pass(server, store, text, kind):
    get(server, *[fail(text, kind)] * 3)
    assert store.get_many([1])["data"].to_pylist() == [b"data 1"]
    assert len(server.calls) == 4


def test_the_wait_that_a_store_asks_for_is_kept(server, store, monkeypatch):
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)
    get(server, fail("[OVERLOADED] (retry_after_ms=1250) full", "internal"), fail("[NO_LEADER] no"))
    store.get_many([1])
    assert waits[0] == 1.25 and waits[1] < 0.1
    get(server, fail("[QUOTA_EXCEEDED] (retry_after_ms=60000) slow", "internal"))
    with pytest.raises(errors.QuotaExceeded) as err:
        store.get_many([1])
    assert err.value.retry_after == 60 and len(waits) == 2


def test_no_server(monkeypatch):
    up_after(monkeypatch, 2)
    with sheafdb.connect("127.0.0.1:1") as store:
        with pytest.raises(errors.Unavailable, match="get of 1 ids"):
            store.get_many([1])


def test_a_server_with_other_rows_is_refused(server, store, monkeypatch):
    rows = Fake.rows
    monkeypatch.setattr(Fake, "rows", lambda self, keys, *more: rows(self, [(g, i + 1) for g, i in keys], *more))
    with pytest.raises(errors.Error, match="not those of the ids"):
        store.get_many([1])


def test_scans(server, store):
    server.records = {(g, i): b"x" for g in "abc" for i in range(10)}
    assert sorted(zip(*store.scan().read_all().select(["group", "id"]).to_pydict().values())) == sorted(server.records)
    assert store.scan("b", columns=["data"], parallel=1).read_all().to_pydict() == {
        "group": ["b"] * 10, "id": list(range(10)), "status": [None] * 10, "data": [b"x"] * 10}
    assert store.scan([]).read_all().num_rows == 0
    splits = pickle.loads(pickle.dumps(store.splits(["a", "c"])))
    assert [(s.group, s.records, s.bytes, len(s.addresses)) for s in splits] == [("a", 5, 9, 1), ("c", 5, 9, 1)]
    assert splits[1].read().read_all()["id"].to_pylist() == list(range(10))
    with pytest.raises(ValueError, match="parallel"):
        store.scan(parallel=0)


def test_a_scan_that_breaks_goes_on_with_the_next_row(server, store):
    server.script["read"] = [1, 0, fail("[SLOW_READER] you do not read"), 2]
    assert store.scan().read_all()["id"].to_pylist() == list(range(20))
    assert [c["after"] for kind, c in server.calls if kind == "read"] == [-(2**63), 3, 3, 3, 11]


def test_a_scan_that_expired_is_an_error(server, store):
    server.script["read"] = [fail("[CURSOR_EXPIRED] begin again", "invalid")]
    with pytest.raises(errors.Expired):
        store.scan().read_all()


def test_damage_comes_behind_all_other_records(server, store):
    server.records = {(g, i): b"x" for g in "abc" for i in range(10)}
    server.script["read"] = ["damaged"]
    seen = 0
    with pytest.raises(errors.Damaged, match="DAMAGED"):
        for batch in store.scan(parallel=1):
            seen += batch.num_rows
    assert seen == 30


def test_a_scan_that_is_left_ends_its_threads(server, store):
    import threading
    server.records = {("0", i): b"x" for i in range(2000)}
    reader = store.scan(parallel=3)
    reader.read_next_batch()
    del reader
    for thread in threading.enumerate():
        if thread.name.startswith("sheafdb-scan"):
            thread.join(10)
            assert not thread.is_alive()


def test_ids_of_a_store(server, store, tmp_path):
    server.mode = "named"
    server.records = {(g, i): b"x" for g in "ba" for i in range(10)}
    ids = store.ids(path=tmp_path / "ids")
    assert ids.groups == ["a", "b"] and ids.values.tolist() == list(range(10)) * 2
    assert ids.store == "11111111-2222-3333-4444-555555555555" and ids.routing == "named"
    assert store.ids().digest == ids.digest and len(store.ids("a")) == 10


def records(n, **more):
    return pa.table({"id": np.arange(n), "data": pa.array([b"d%d" % i for i in range(n)], pa.binary()), **more})


def test_puts(server, store):
    server.records = {}
    assert store.put_many(records(3000)).to_pydict() == {
        "id": list(range(3000)), "status": [None] * 3000, "message": [None] * 3000, "version": ["v"] * 3000}
    assert server.records == {("0", i): b"d%d" % i for i in range(3000)}
    assert len(server.applied) == 3000
    reader = records(10).to_reader(max_chunksize=3)
    assert store.put_many(reader, group="g").num_rows == 10 and server.records["g", 9] == b"d9"
    assert store.put_many([]).num_rows == 0 and store.put_many(records(0)).num_rows == 0
    assert store.put_many([records(1), records(2).to_batches()[0]])["id"].to_pylist() == [0, 0, 1]


def test_large_puts_are_cut(server, store):
    data = pa.array([bytes(1 << 20)] * 9 + [b""], pa.large_binary())
    assert store.put_many(pa.table({"id": np.arange(10), "data": data}))["status"].null_count == 10
    assert len(server.records["0", 8]) == 1 << 20


def test_puts_are_repeated_with_their_request_ids(server, store):
    server.records = {}
    server.script["put"] = [1, ("unanswered", 0), {1030: "NO_LEADER", 1031: "OUTCOME_UNKNOWN"}]
    assert store.put_many(records(1500))["status"].null_count == 1500
    assert len(server.applied) == 1500 and server.puts == 1024 + 476 + 476 + 2
    assert server.records == {("0", i): b"d%d" % i for i in range(1500)}


def test_refused_puts_have_their_reason(server, store):
    server.script["put"] = [{1: "VERSION_MISMATCH", 2: "DISK_FULL"}]
    answer = store.put_many(records(3)).to_pylist()
    assert [row["status"] for row in answer] == [None, "VERSION_MISMATCH", "DISK_FULL"]
    assert answer[2]["message"] == "DISK_FULL of 2" and len([c for c in server.calls if c[0] == "put"]) == 1
    server.script["put"] = [fail("[PERMISSION_DENIED] no grant", "denied")]
    answer = store.put_many(records(2)).to_pylist()
    assert {row["status"] for row in answer} == {"PERMISSION_DENIED"}


def test_an_unknown_outcome_stays_unknown(server, store, monkeypatch):
    server.script["put"] = [{1: "OUTCOME_UNKNOWN"}, {1: "DISK_FULL"}]
    answer = store.put_many(records(2)).to_pylist()
    assert [row["status"] for row in answer] == [None, "OUTCOME_UNKNOWN"]
    assert "may have been applied" in answer[1]["message"] and "DISK_FULL of 1" in answer[1]["message"]
    server.script["put"] = [{1: "OUTCOME_UNKNOWN"}, {1: "RECORD_EXISTS"}]
    assert store.put_many(records(2)).to_pylist()[1]["status"] == "RECORD_EXISTS"
    up_after(monkeypatch, 2)
    server.script["put"] = [("unanswered", 0), fail("[NO_LEADER] no")]
    assert store.put_many(records(1)).to_pylist()[0]["status"] == "OUTCOME_UNKNOWN"


@pytest.mark.parametrize("table, words", [
    ({"id": [1]}, "'data' is missing"), ({"data": [b""]}, "'id' is missing"),
    ({"id": [1], "data": ["text"]}, "binary"), ({"id": [1], "data": [b""], "size": [1]}, "no column 'size'"),
    ({"id": ["x"], "data": [b""]}, "cannot be int64"), ({"id": [None], "data": [b""]}, "row of id is null"),
    ({"id": [1], "data": pa.array([None], pa.binary())}, "row of data is null"),
    ({"id": [1], "data": [bytes((1 << 20) + 1)]}, "id 1 has 1048577 bytes"),
])
def test_puts_that_cannot_be_are_refused(store, table, words):
    with pytest.raises(errors.Invalid, match=words):
        store.put_many(pa.table(table))
    with pytest.raises(TypeError):
        store.put_many([table])


def test_messages_are_within_the_limits():
    data = pa.array([bytes(n % 300 * 100) for n in range(2000)], pa.large_binary())
    batch = pa.RecordBatch.from_pydict({"id": pa.array(range(2000)), "data": data}).slice(7)
    parts = list(put.cut([batch]))
    assert sum(part.num_rows for part in parts) == 1993
    assert all(part.num_rows <= put.ROWS for part in parts)
    assert all(part.num_rows == 1 or sum(map(len, part["data"].to_pylist())) <= put.BYTES for part in parts)
    assert pa.Table.from_batches(parts)["data"].to_pylist() == batch["data"].to_pylist()


def test_direct_calls_go_to_leaders_and_then_to_the_gateway():
    with Fake(groups=3) as gateway, Fake() as one, Fake() as two:
        for fake in (gateway, one, two):
            fake.records = {("0", i): b"x" for i in range(50)}
        gateway.leaders = [one.address, two.address, "127.0.0.1:1"]
        from sheafdb.routing import group_of
        numbers = group_of(np.arange(50), 3)
        with sheafdb.connect(gateway.address, timeout=60, direct=True) as store:
            two.script["get"] = [{int(np.flatnonzero(numbers == 1)[0]): "NOT_LEADER"}]
            ids = list(range(49, -1, -1))
            table = store.get_many(ids)
            assert table["id"].to_pylist() == ids and table["status"].null_count == 50
            assert [len(asked) for _, (_, asked) in one.calls] == [(numbers == 0).sum()]
            assert [len(asked) for _, (_, asked) in two.calls] == [(numbers == 1).sum()]
            assert sorted(len(asked) for kind, asked in gateway.calls if kind == "get" for asked in asked[1:]) == [
                1, (numbers == 2).sum()]


@pytest.mark.parametrize("step, at_gateway", [
    (None, []), (2, [7]), (fail("[VIEW_EXPIRED] not here", "invalid"), [-(2**63)]), (fail("no"), [-(2**63)]),
])
def test_direct_scans_read_at_the_shard_and_then_at_the_gateway(server, step, at_gateway):
    with Fake() as shard:
        shard.records, server.read_at = server.records, shard.address
        with sheafdb.connect(server.address, timeout=60) as store:
            assert store.scan().read_all()["id"].to_pylist() == list(range(20)) and not shard.calls
        server.calls.clear()
        shard.script["read"] = [step]
        with sheafdb.connect(server.address, timeout=60, direct=True) as store:
            assert store.scan().read_all()["id"].to_pylist() == list(range(20))
        assert len(shard.calls) == 1
        assert [c["after"] for kind, c in server.calls if kind == "read"] == at_gateway


def test_a_direct_scan_whose_shard_is_gone_is_read_at_the_gateway(server):
    server.read_at = "127.0.0.1:1"
    with sheafdb.connect(server.address, timeout=60, direct=True) as store:
        assert store.scan().read_all()["id"].to_pylist() == list(range(20))


def test_a_direct_scan_that_the_shard_refuses_is_an_error(server):
    with Fake() as shard, sheafdb.connect(server.address, timeout=60, direct=True) as store:
        server.read_at = shard.address
        shard.script["read"] = [fail("[CURSOR_EXPIRED] begin again", "invalid")]
        with pytest.raises(errors.Expired):
            store.scan().read_all()


def behind(store):
    return store.get_many([1])["data"].to_pylist()


def test_a_store_that_was_used_before_a_fork_is_refused(server, store):
    assert behind(store) == [b"data 1"]
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # ends a child that hangs
        try:
            behind(store)
        except errors.Forked as err:
            os.write(write, str(err).encode())
        os._exit(0)
    os.close(write)  # a child that was ended leaves nothing to read
    os.waitpid(pid, 0)
    assert b"before a fork" in os.read(read, 1000)


def test_a_store_can_be_sent_to_another_process(server, store):
    assert behind(store) == [b"data 1"]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(behind, (store,)) == [b"data 1"]


def test_settings_come_from_the_environment(monkeypatch):
    for name in ("ADDRESS", "CA", "CERT", "KEY", "TOKEN_FILE"):
        monkeypatch.setenv(f"SHEAF_{name}", f"of-{name}")
    store = sheafdb.connect()
    wire = store._wire
    assert (store.address, wire.ca, wire.cert, wire.key, wire.token_file) == (
        "of-ADDRESS", "of-CA", "of-CERT", "of-KEY", "of-TOKEN_FILE")
    with pytest.raises(errors.Error, match="of-CA: No such file"):
        store.get_many([1])
    assert sheafdb.connect("host:1", ca="x").address == "host:1"


@pytest.mark.parametrize("fields, words", [
    (dict(ca="a", cert="b"), "its key"), (dict(cert="a", key="b"), "TLS alone"), (dict(token_file="a"), "TLS alone"),
    (dict(timeout=0), "timeout is 0"), (dict(timeout=120), "below 110"),
])
def test_settings_that_cannot_be_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        sheafdb.connect("host:1", **fields)


def test_files_are_read_again(tmp_path):
    from sheafdb.wire import File
    path = tmp_path / "token"
    path.write_text("one")
    file = File(str(path))
    assert file.read() == b"one" and file.read() == b"one"
    (tmp_path / "aside").write_text("two")
    os.rename(tmp_path / "aside", path)
    assert file.read() == b"two"
