"""Views: against a model, and against `sheaf dev` plain and with TLS."""

import pickle
import time
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

import sheafdb
from fake import Fake
from sheafdb import errors, ml
from sheafdb.ids import Ids
from sheafdb.view import seconds


def filled(store, ids, text, group=None):
    data = pa.array([b"%s %d" % (text, i) for i in ids], pa.binary())
    assert store.put_many(pa.table({"id": ids, "data": data}), group=group)["status"].null_count == len(ids)


def check(store, tmp_path, group=None):
    """Opens a view, changes each record behind it, and reads the view in every way."""
    ids = list(range(300))
    filled(store, ids, b"old", group)
    view = store.view(group, expires="2h")
    filled(store, ids + [300], b"new", group)
    old = {i: b"old %d" % i for i in ids}

    assert store.get_many([7, 300], group)["data"].to_pylist() == [b"new 7", b"new 300"]
    for table in (view.get_many([7, 300, 7], group), store.get_many([7, 300, 7], group, view=view.id)):
        assert table["data"].to_pylist() == [b"old 7", None, b"old 7"]
        assert table["status"].to_pylist() == [None, "RECORD_NOT_FOUND", None]
    for reader in (view.scan(), store.scan(group, view=view), pickle.loads(pickle.dumps(view)).scan()):
        table = reader.read_all()
        assert dict(zip(table["id"].to_pylist(), table["data"].to_pylist())) == old and len(table) == len(old)
    splits = pickle.loads(pickle.dumps(view.splits(shared=True)))
    assert {s.group for s in splits} == set(view.groups)
    assert sum(len(split.read().read_all()) for split in splits) == len(old)

    found = view.ids(tmp_path / "view.ids")
    assert isinstance(found.values, np.memmap) and found.values.nbytes == 8 * len(old) and found.view == view.id
    assert sorted(found.values) == ids and view.ids().digest == found.digest == view.ids(tmp_path / "view.ids").digest
    ds = ml.Dataset(view, columns=["data"], decode=lambda table: table["data"].to_pylist())
    assert ds.digest == found.digest and sorted(ds[:]) == sorted(old.values())

    first = view.expires
    assert view.renew(timedelta(days=2)).expires > first
    again = store.view(id=view.id, expires="3d")
    assert again.groups == view.groups and again.get_many([7], group)["data"].to_pylist() == [b"old 7"]
    other = store.view(group)
    listed = {v.id: v for v in store.views()}
    assert list(listed)[-2:] == [view.id, other.id] and listed[view.id].groups == view.groups
    assert listed[view.id].get_many([7], group)["data"].to_pylist() == [b"old 7"]
    if isinstance(store, FakeStore):
        assert listed[view.id].lost == {"0": "its disk is gone"}
    else:
        assert listed[view.id].lost == {} and listed[view.id].opened == view.opened
    with pytest.raises(errors.IdsError, match=f"view.ids: has ids of view {view.id}, not of view {other.id}"):
        other.ids(tmp_path / "view.ids")
    other.close()

    view.close()
    if not isinstance(store, FakeStore):
        view.close()
    for read in (lambda: view.get_many([7], group), lambda: view.scan().read_all(), lambda: splits[0].read().read_all(),
                 lambda: view.renew(), lambda: ds[0], view.ids):
        ends(view, read)
    assert view.id not in [v.id for v in store.views()]


def ends(view, read):
    """Waits until a read of a closed view is refused: each shard hears from etcd that it was closed, a moment later."""
    with pytest.raises(errors.ViewExpired, match=view.id):
        for _ in range(1000):
            read()
            time.sleep(0.01)


class FakeStore(sheafdb.Store):
    pass


def test_a_model(tmp_path):
    with Fake(batch=100) as server:
        made = sheafdb.connect(server.address)
        with FakeStore(made.address, made._wire, made.timeout, False) as store:
            check(store, tmp_path)


def test_hash_routing(plain, tmp_path):
    with plain.connect() as store:
        with store.view() as view:  # other tests have put records
            taken = view.ids()
        assert view.id and taken.routing == "hash"
        known = np.arange(10**15, 10**15 + 200)
        filled(store, known.tolist(), b"old")
        view = store.view()
        filled(store, known.tolist(), b"new")
        for direct in (False, True):
            with plain.connect(direct=direct) as reader:
                table = reader.get_many(known, view=view)
                assert table["data"].to_pylist() == [b"old %d" % i for i in known]
        ids = view.ids(tmp_path / "ids")
        part = ids.select(np.isin(ids.values, known))
        ds = ml.Dataset(view, part, columns=["data"])
        with ml.loader(ds, ml.Order(len(ds), seed=1, batch=50), workers=1) as loader:
            seen = [data for batch in loader for data in batch["data"].to_pylist()]
        assert sorted(seen) == sorted(b"old %d" % i for i in known)
        view.close()
        for direct in (False, True):
            with plain.connect(direct=direct) as reader:
                ends(view, lambda: reader.get_many(known, view=view))


def test_named_routing_over_tls(secure, tmp_path):
    with secure.connect() as store:
        check(store, tmp_path, "of-views")


def test_rows_that_say_that_the_view_has_ended_are_an_error():
    with Fake() as server, sheafdb.connect(server.address) as store:
        filled(store, [1, 2], b"x")
        view = store.view()
        server.script["get"] = [lambda _: {2: "VIEW_EXPIRED"}]
        with pytest.raises(errors.ViewExpired, match=view.id):
            view.get_many([1, 2])


def test_ids_of_a_view_are_never_read_as_another(tmp_path):
    ids = Ids.of({"a": [1, 2]}, store="s", view="v").write(tmp_path / "ids")
    assert ids.digest != Ids.of({"a": [1, 2]}, store="s").digest
    assert pickle.loads(pickle.dumps(ids)).view == pickle.loads(pickle.dumps(ids.select([0]))).view == "v"
    view = sheafdb.View(None, "v", ["a"], 0, 0)
    assert len(ml.Dataset(view, ids)) == 2
    content = (tmp_path / "ids").read_bytes()
    for size in (0, 8, 20, len(content) - 1):
        (tmp_path / "cut").write_bytes(content[:size])
        with pytest.raises(errors.IdsError, match="/cut: "):
            view.ids(tmp_path / "cut")
    Ids.of({"a": [1, 2]}).write(tmp_path / "none")
    with pytest.raises(errors.IdsError, match="none: has ids of no view, not of view v"):
        view.ids(tmp_path / "none")
    for store in (sheafdb.View(None, "w", ["a"], 0, 0), sheafdb.connect("127.0.0.1:1")):
        with pytest.raises(errors.IdsError, match="ids: of view v, and (view w|the newest versions) would be read"):
            ml.Dataset(store, ids)
    with pytest.raises(TypeError, match="ids is None"):
        ml.Dataset(sheafdb.connect("127.0.0.1:1"))


def test_what_cannot_be_is_refused():
    assert [seconds(e) for e in (1, "90s", "45m", "24h", "30d", timedelta(days=1))] == [1, 90, 2700, 86400, 2592000, 86400]
    for bad in (0, 0.5, -1, "", "1", "1w", "31d", "0h", timedelta(0), float("nan")):
        with pytest.raises(ValueError, match="expires is"):
            seconds(bad)
    store = sheafdb.connect("127.0.0.1:1")
    for bad in ("", 7, b"v"):
        for read in (lambda: store.get_many([1], view=bad), lambda: store.scan(view=bad)):
            with pytest.raises(TypeError, match="view is"):
                read()
    with pytest.raises(ValueError, match="groups"):
        store.view([])
    with pytest.raises(ValueError, match="id or groups"):
        store.view(["a"], id="v")
