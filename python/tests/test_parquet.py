"""Parquet files of `sheaf export` in other readers, and files of pyarrow in `sheaf import`. DuckDB and Polars are left
out where they are not installed; the soak installs them."""

import glob
import hashlib
import json
import os
import pathlib
import re
import subprocess

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from conftest import dev

ROOT = pathlib.Path(__file__).parents[2]
N = 3000


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A store of these tests alone, because they read all of it."""
    yield from dev(tmp_path_factory, "--groups", "4")


def sheaf(store, *args, code=0, cwd=None):
    env = dict(os.environ)
    if store.ca:
        env.update(SHEAF_CA=store.ca, SHEAF_CERT=store.cert, SHEAF_KEY=store.key)
    ended = subprocess.run([os.environ["SHEAF_BINARY"], *args, "--server", store.address], env=env, cwd=cwd,
                           capture_output=True, text=True)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def filled(store, group=None, n=N):
    """Stores records with empty data, attributes and negative ids, and one above 1 MiB."""
    data = pa.array([bytes([i % 251]) * (i % 300) for i in range(n)], pa.binary())
    attributes = pa.array([[("kind", b"%d" % (i % 3)), ("raw", b"\xff\x00")] if i % 2 else [] for i in range(n)],
                          pa.map_(pa.utf8(), pa.binary()))
    table = pa.table({"id": [i - 100 for i in range(n)], "data": data, "attributes": attributes})
    assert store.put_many(table, group=group)["status"].null_count == n


def rows_of(table):
    """The rows by group and id, without the data."""
    names = ("group", "id", "version", "size", "crc32c", "status", "attributes")
    times = [table[name].cast(pa.int64()).to_pylist() for name in ("timestamp", "commit_time")]
    rows = zip(*(table[name].to_pylist() for name in names), *times)
    return {row[:2]: row for row in rows}


def test_pyarrow(own, tmp_path):
    with own.connect() as store:
        filled(store)
        subprocess.run([os.environ["SHEAF_BINARY"], "put", "7777777", "--server", own.address], input=b"large" * 300_000,
                       check=True, capture_output=True)
        want = store.scan().read_all()
    out = tmp_path / "out"
    sheaf(own, "export", "--format", "parquet", str(out))
    manifest = json.loads((out / "manifest.json").read_text())
    files = sorted(glob.glob(f"{out}/*.parquet"))
    assert [os.path.basename(f) for f in files] == [f["name"] for f in manifest["files"]]
    for path, said in zip(files, manifest["files"]):
        content = pathlib.Path(path).read_bytes()
        assert hashlib.sha256(content).hexdigest() == said["sha256"] and len(content) == said["fileBytes"]
        meta = pq.ParquetFile(path).metadata
        assert meta.num_rows == said["records"]
        for group in (meta.row_group(i) for i in range(meta.num_row_groups)):
            assert group.num_rows <= 10_000 and group.total_byte_size <= 64 << 20
            assert all(group.column(i).has_offset_index for i in range(group.num_columns))

    table = pq.read_table(files)
    assert table.num_rows == want.num_rows == manifest["records"] == N + 1
    assert table.schema.names == want.schema.names
    assert [t for n, t in zip(table.schema.names, table.schema.types) if n not in ("attributes", "data")] == [
        t for n, t in zip(want.schema.names, want.schema.types) if n not in ("attributes", "data")]
    assert table.schema.field("data").type == pa.binary()
    got, expected = rows_of(table), rows_of(want)
    large = expected.pop(next(key for key in expected if key[1] == 7777777))
    mine = got.pop(large[:2])
    assert got == expected
    assert mine[4] is not None and mine[5] is None and large[5] == "USE_DOWNLOAD"  # a scan has no data of this record
    data = dict(zip(table["id"].to_pylist(), table["data"].to_pylist()))
    assert data[7777777] == b"large" * 300_000
    assert {i: d for i, d in data.items() if i != 7777777} == {i: d for i, d in zip(want["id"].to_pylist(), want["data"].to_pylist()) if i != 7777777}
    folder = pa.dataset.dataset(str(out), exclude_invalid_files=True)
    assert folder.count_rows() == N + 1

    check_others(out, N + 1, data)
    # An export that is complete is left as it is.
    assert "wrote 4 files" in sheaf(own, "export", "--format", "parquet", str(out))


def check_others(out, rows, data):
    """Compares what the readers that are installed find in an export."""
    try:
        import duckdb
        import polars
    except ImportError:
        return
    found = duckdb.sql(f"SELECT id, data FROM '{out}/*.parquet'").fetchall()
    assert len(found) == rows and dict(found) == data
    [(count, kinds)] = duckdb.sql(f"""SELECT count(*), count(*) FILTER (attributes['kind']::VARCHAR = '1') FROM '{out}/*.parquet'
        WHERE commit_time > TIMESTAMP '2020-01-01' AND status IS NULL""").fetchall()
    assert count == rows and kinds == len([i for i in range(N) if i % 2 and i % 3 == 1])
    frame = polars.read_parquet(f"{out}/*.parquet")
    assert frame.height == rows and dict(zip(frame["id"].to_list(), frame["data"].to_list())) == data


def test_pyarrow_to_sheaf(own, tmp_path):
    first = 10**12
    ids = [first + i for i in range(500)]
    nested = pa.array([{"a": [1, 2]}] * 500)
    for n, (codec, kind) in enumerate([("none", pa.binary()), ("snappy", pa.utf8()), ("gzip", pa.large_binary()),
                                       ("zstd", pa.large_utf8()), ("lz4", pa.binary()), ("brotli", pa.binary())]):
        keys = pa.array([i + 1000 * n for i in ids], pa.uint64() if n % 2 else pa.int64())
        values = pa.array([f"{codec} {i % 10}" for i in ids]).cast(kind)
        table = pa.table({"nested": nested, "key": keys, "value": values})
        pq.write_table(table, tmp_path / f"{codec}.parquet", compression=codec, use_dictionary=n % 2 == 0, row_group_size=77,
                       data_page_size=100, data_page_version="2.0" if n % 3 else "1.0")
    files = [str(path) for path in sorted(tmp_path.glob("*.parquet"))]
    assert "stored 3,000 records of 3,000 rows" in sheaf(own, "import", "--format", "parquet", *files, "--id", "key",
                                                         "--data", "value")
    with own.connect() as store:
        for n, codec in enumerate(["none", "snappy", "gzip", "zstd", "lz4", "brotli"]):
            back = store.get_many([i + 1000 * n for i in ids])
            assert back["data"].to_pylist() == [b"%s %d" % (codec.encode(), i % 10) for i in ids]

    bad = pa.table({"key": pa.array([10**15, None, 2**63, 4], pa.uint64()), "value": pa.array([b"a", b"b", b"c", None])})
    pq.write_table(bad, tmp_path / "bad.parquet")
    said = sheaf(own, "import", "--format", "parquet", str(tmp_path / "bad.parquet"), "--id", "key", "--data", "value",
                 code=1)
    assert [f"bad.parquet row {i}:" in said for i in range(4)] == [False, True, True, True]


def test_named_and_tls(secure, tmp_path):
    with secure.connect() as store:
        for group in ("p1", "p2"):
            filled(store, group, 50)
        out = tmp_path / "out"
        sheaf(secure, "export", "--format", "parquet", str(out), "--group", "p1")
        (file,) = glob.glob(f"{out}/*.parquet")
        table = pq.read_table(file)
        assert set(table["group"].to_pylist()) == {"p1"} and table.num_rows == 50
        moved = table.set_column(0, "group", pa.array(["p3"] * 50))
        pq.write_table(moved, tmp_path / "moved.parquet")
        sheaf(secure, "import", "--format", "parquet", str(tmp_path / "moved.parquet"), "--id", "id", "--data", "data",
              "--group", "column:group")
        assert store.scan(["p3"]).read_all().num_rows == 50


@pytest.mark.skipif(not (ROOT / "docs/parquet.md").exists(), reason="these tests are not in a checkout")
def test_page(tmp_path_factory, tmp_path, monkeypatch):
    for store in dev(tmp_path_factory, "--groups", "4"):
        (tmp_path / "bin").mkdir()
        program = tmp_path / "bin/sheaf"
        program.write_text(f'#!/bin/sh\nexec "{os.environ["SHEAF_BINARY"]}" --server {store.address} "$@"\n')
        program.chmod(0o755)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        page = (ROOT / "docs/parquet.md").read_text()
        blocks = re.findall(r"^```(sh|python)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        assert len(blocks) == 3
        for language, text in blocks:
            if language == "sh":
                subprocess.run(["sh", "-ec", text], check=True)
            else:
                exec(compile(text, "docs/parquet.md", "exec"), {"__name__": "page"})
