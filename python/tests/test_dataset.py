"""Samples by index."""

import pickle

import numpy as np
import pytest

from model import Model, decode_dict, decode_ids, ids_of
from sheafdb.errors import Missing
from sheafdb.ids import Ids
from sheafdb.ml import Dataset


def test_samples_come_in_the_order_of_the_indexes():
    ids = ids_of(100)
    ds = Dataset(Model(), ids)
    assert len(ds) == 100
    table = ds[np.array([99, 0, 50, 0])]
    assert table["id"].to_pylist() == ids.values[[99, 0, 50, 0]].tolist()
    keys = zip(table["group"].to_pylist(), table["id"].to_pylist())
    assert table["data"].to_pylist() == [f"{group}/{id}".encode() for group, id in keys]
    assert ds[[3, 1]]["id"].to_pylist() == ids.values[[3, 1]].tolist()
    assert ds[10:20:5]["id"].to_pylist() == ids.values[[10, 15]].tolist()
    assert ds[-1]["id"] == ids.values[99] and ds[np.int32(2)]["id"] == ids.values[2]
    assert len(ds[[]]) == 0
    for index in (100, -101, [100], [-1]):
        with pytest.raises(IndexError):
            ds[index]


def test_hash_routing_needs_no_group():
    ds = Dataset(Model(), Ids.of({"0": [1, 2], "1": [3]}, routing="hash"))
    assert ds[[2, 0]]["data"].to_pylist() == [b"None/3", b"None/1"]


def test_decode_makes_the_batch_and_the_sample():
    ids = ids_of(10)
    assert Dataset(Model(), ids, decode=decode_ids)[[1, 2]].tolist() == ids.values[[1, 2]].tolist()
    assert Dataset(Model(), ids, decode=decode_ids)[3] == ids.values[3]
    assert Dataset(Model(), ids, decode=decode_dict)[3] == {"x": ids.values[3], "size": len(f"g0/{ids.values[3]}")}


def test_statuses_of_rows():
    ids = Ids.of({"0": np.arange(10)}, routing="hash")

    def of(statuses, **fields):
        return Dataset(Model(statuses), ids, **fields)

    gone = {4: "RECORD_NOT_FOUND", 5: "GROUP_NOT_FOUND"}
    with pytest.raises(Missing, match="id 4 of group 0: RECORD_NOT_FOUND"):
        of(gone)[2:6]
    assert of(gone, missing="skip")[2:7]["id"].to_pylist() == [2, 3, 6]
    assert of(gone)[6:8]["id"].to_pylist() == [6, 7]
    with pytest.raises(Missing, match="sample 4"):
        of(gone, missing="skip")[4]
    for status in ("DAMAGED", "PERMISSION_DENIED", "USE_DOWNLOAD"):
        for missing in ("raise", "skip"):
            with pytest.raises(Missing, match=f"id 3 of group 0: {status}"):
                of({3: status, 4: "RECORD_NOT_FOUND"}, missing=missing)[[3]]
    assert of({3: "USE_DOWNLOAD"}, columns=["size"])[[3]]["id"].to_pylist() == [3]
    with pytest.raises(Missing, match="5 records .* and 2 more"):
        of({i: "DAMAGED" for i in range(5)})[:]


def test_what_cannot_be_is_refused():
    for fields in (dict(missing="no"), dict(columns="data")):
        with pytest.raises((TypeError, ValueError)):
            Dataset(Model(), ids_of(3), **fields)


def test_a_data_set_can_be_sent():
    ds = pickle.loads(pickle.dumps(Dataset(Model(), ids_of(10), decode=decode_ids)))
    assert ds[[1]].tolist() == ids_of(10).values[[1]].tolist()
