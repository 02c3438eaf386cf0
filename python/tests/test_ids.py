"""Files of ids: what is written is read, and anything else is refused by name."""

import os
import pickle
import struct

import numpy as np
import pytest

from sheafdb.errors import IdsError
from sheafdb.ids import Ids

LOW, HIGH = -(2**63), 2**63 - 1


def some():
    return Ids.of({"b": [5, LOW, HIGH, 5], "a": [3, 1, 2], "none": [], "ü": [0]}, store="s", routing="named")


def test_ids_are_sorted_by_group_and_id(tmp_path):
    ids = some()
    for which in (ids, ids.write(tmp_path / "ids"), pickle.loads(pickle.dumps(ids))):
        assert which.groups == ["a", "b", "ü"]
        assert which.values.tolist() == [1, 2, 3, LOW, 5, HIGH, 0]
        numbers, values = which.at([6, 0, 3, 0])
        assert numbers.tolist() == [2, 0, 1, 0] and values.tolist() == [0, 1, LOW, 1]
        assert which.digest == ids.digest
    assert os.listdir(tmp_path) == ["ids"]


def test_the_format_does_not_change(tmp_path):
    some().write(tmp_path / "ids")
    content = (tmp_path / "ids").read_bytes()
    header = b'{"digest":"f5cbf7b467161277f2bea5b2a4073269","store":"s","routing":"named",'
    header += b'"groups":[["a",3],["b",3],["\xc3\xbc",1]]}'
    header += b" " * (-len(header) % 8)
    values = struct.pack("<7q", 1, 2, 3, LOW, 5, HIGH, 0)
    assert content == b"SHEAFIDS" + struct.pack("<II", 1, len(header)) + header + values


def test_a_mapped_file_is_sent_by_its_name(tmp_path):
    ids = Ids.of({"a": np.arange(100_000)}).write(tmp_path / "ids")
    sent = pickle.dumps(ids)
    assert len(sent) < 1000
    assert pickle.loads(sent).values[-1] == 99_999
    Ids.of({"a": np.arange(100_001)}).write(tmp_path / "ids")
    with pytest.raises(IdsError, match="another data set"):
        pickle.loads(sent)
    assert ids.values[-1] == 99_999  # the file that is mapped is still the old one


def test_the_digest_is_of_everything():
    base = {"a": [1, 2], "b": [3]}
    others = [
        Ids.of(base), Ids.of(base, store="x"), Ids.of(base, routing="hash"), Ids.of({"a": [1, 2, 3]}),
        Ids.of({"a": [1], "b": [2, 3]}), Ids.of({"a": [1, 2], "c": [3]}), Ids.of({"a": [1, 3], "b": [3]}), Ids.of({}),
    ]
    assert len({ids.digest for ids in others}) == len(others)


def test_no_ids(tmp_path):
    ids = Ids.of({}).write(tmp_path / "ids")
    assert len(ids) == 0 and len(pickle.loads(pickle.dumps(ids))) == 0
    with pytest.raises(IndexError):
        ids.at([0])
    assert ids.at([])[1].size == 0


def test_a_part_of_the_ids_is_a_data_set_of_its_own(tmp_path):
    ids = some()
    part = ids.select([5, 0, 0])
    assert part.groups == ["a", "b"] and part.values.tolist() == [1, HIGH] and part.digest != ids.digest
    assert ids.select(ids.values > 2).values.tolist() == [3, 5, HIGH]
    assert ids.select(np.ones(7, bool)).digest == ids.digest
    assert len(ids.select([])) == 0
    with pytest.raises(IndexError):
        ids.select([7])
    with pytest.raises(ValueError, match="mask"):
        ids.select([True])
    assert part.write(tmp_path / "part").digest == part.digest


@pytest.mark.parametrize("index", [7, -1])
def test_indexes_outside_are_refused(index):
    with pytest.raises(IndexError, match="0 to 6"):
        some().at([index])
    with pytest.raises(TypeError):
        some().at([0.5])


def test_every_shorter_file_is_refused_by_name(tmp_path):
    some().write(tmp_path / "ids")
    content = (tmp_path / "ids").read_bytes()
    for size in range(len(content)):
        (tmp_path / "cut").write_bytes(content[:size])
        with pytest.raises(IdsError, match="/cut: (cut short|this is not a file of ids)"):
            Ids.open(tmp_path / "cut")
    (tmp_path / "cut").write_bytes(content + b"\0")
    with pytest.raises(IdsError, match="/cut: too long"):
        Ids.open(tmp_path / "cut")


def test_every_changed_byte_is_refused_by_name(tmp_path):
    some().write(tmp_path / "ids")
    content = bytearray((tmp_path / "ids").read_bytes())
    padding = content.index(b"]]}") + 3
    for at in range(len(content)):
        if padding <= at < len(content) - 56:
            continue  # spaces, which JSON passes over
        for bit in (1, 64, 128):
            content[at] ^= bit
            (tmp_path / "bad").write_bytes(content)
            with pytest.raises(IdsError, match="/bad: "):
                Ids.open(tmp_path / "bad")
            content[at] ^= bit


def test_files_of_others_are_refused(tmp_path):
    ids = some().write(tmp_path / "ids")
    assert Ids.open(tmp_path / "ids", digest=ids.digest, store="s").digest == ids.digest
    with pytest.raises(IdsError, match="ids: has ids of store s, not of t"):
        Ids.open(tmp_path / "ids", store="t")
    with pytest.raises(IdsError, match="ids: is another data set"):
        Ids.open(tmp_path / "ids", digest="00")
    with pytest.raises(IdsError, match="no such file"):
        Ids.open(tmp_path / "none")
    with pytest.raises(IdsError, match="none/ids: cannot write"):
        some().write(tmp_path / "none" / "ids")


def test_a_write_that_fails_leaves_the_file_of_before(tmp_path, monkeypatch):
    before = some().write(tmp_path / "ids")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(IdsError, match="No space left"):
        Ids.of({"a": [1]}).write(tmp_path / "ids")
    assert Ids.open(tmp_path / "ids").digest == before.digest
    assert os.listdir(tmp_path) == ["ids"]
