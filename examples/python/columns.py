"""Puts, gets and scans records as tables, with the package of the folder python: pip install ./python"""
import pyarrow as pa, sheafdb
store = sheafdb.connect("127.0.0.1:7600")
store.put_many(pa.table({"id": [1, 2], "data": [b"one", b"two"]}))
print(store.get_many([2, 1], columns=["data"]).to_pylist())
print(store.scan().read_all().num_rows, "records")
