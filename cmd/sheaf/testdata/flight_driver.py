"""Makes each call of docs/flight.md by pyarrow: flight_driver.py ADDRESS [CA CERT KEY]. Ends with 1 if one differs."""
import json
import struct
import sys

import numpy
import pyarrow as pa
import pyarrow.flight as flight

address, files = sys.argv[1], sys.argv[2:]
if files:
    ca, cert, key = (open(name, "rb").read() for name in files)
    options = {"tls_root_certs": ca, "cert_chain": cert, "private_key": key}
    scheme = "grpc+tls://"
else:
    options, scheme = {}, "grpc://"
client = flight.connect(scheme + address, **options)

schema = pa.schema([
    pa.field("group", pa.utf8(), nullable=False),
    pa.field("id", pa.int64(), nullable=False),
    ("version", pa.utf8()),
    ("timestamp", pa.timestamp("ns", "UTC")),
    ("commit_time", pa.timestamp("ns", "UTC")),
    ("attributes", pa.map_(pa.utf8(), pa.binary())),
    ("size", pa.int64()),
    ("crc32c", pa.uint32()),
    ("status", pa.utf8()),
    ("data", pa.large_binary()),
])


def ticket(command, ids):
    return flight.Ticket(json.dumps(command).encode() + numpy.asarray(ids, dtype="<i8").tobytes())


def put(ids, data):
    columns = {
        "id": pa.array(ids, pa.int64()),
        "data": pa.array(data, pa.large_binary()),
        "attributes": pa.array([[("n", struct.pack("<q", i))] for i in ids], pa.map_(pa.utf8(), pa.binary())),
        "request_id": pa.array([numpy.random.bytes(16) for _ in ids], pa.binary(16)),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"put": {}}))
    writer, answers = client.do_put(descriptor, batch.schema)
    results = []
    for at in range(0, batch.num_rows, 200):  # at most 1,024 rows and 4 MiB
        writer.write_batch(batch.slice(at, 200))
        results.append(json.loads(answers.read().to_pybytes()))
    writer.close()
    return results


lowest, highest = -(2**63), 2**63 - 1
ids = [lowest, highest, 0, -1] + [7 * i + 1 for i in range(2000)]
data = {i: bytes([n % 251]) * (n * 13 % 20000) for n, i in enumerate(ids)}
for result in put(ids, [data[i] for i in ids]):
    assert set(result["status"]) == {None} and all(result["version"]) and all(result["commit_time"]), result

# Get: the order of the ids, with duplicates, and an id that is absent.
asked = ids[::-1] + [5, ids[7], ids[7], lowest]
table = client.do_get(ticket({"get": {}}, asked)).read_all()
table.validate(full=True)
assert table.schema.equals(schema), table.schema
assert table["id"].to_pylist() == asked
for row in table.drop_columns(["timestamp", "commit_time"]).to_pylist():  # datetime has no nanoseconds
    if row["id"] == 5:
        assert row["status"] == "RECORD_NOT_FOUND" and row["data"] is None and row["version"] is None, row
        continue
    assert row["status"] is None and row["data"] == data[row["id"]] and row["size"] == len(row["data"]), row["id"]
    assert row["attributes"] == [("n", struct.pack("<q", row["id"]))], row["attributes"]
table = client.do_get(ticket({"get": {"columns": ["size"]}}, asked[:3])).read_all()
assert table["data"].null_count == 3 and table["size"].null_count == 0 and table["version"].null_count == 3

# Scan: each endpoint at the shard that it names, and from the ticket behind the first batch.
info = client.get_flight_info(flight.FlightDescriptor.for_command('{"scan": {"split_bytes": 1048576}}'))
assert info.schema.equals(schema), info.schema
seen = []
for endpoint in info.endpoints:
    shard = flight.connect(endpoint.locations[0], **options)
    reader = shard.do_get(endpoint.ticket)
    chunk = reader.read_chunk()
    seen += chunk.data["id"].to_pylist()
    rest = client.do_get(flight.Ticket(chunk.app_metadata.to_pybytes())).read_all()
    seen += rest["id"].to_pylist()
    reader.cancel()
assert sorted(seen) == sorted(ids), (len(seen), len(ids))

# Routing: the groups that numpy computes are those of the rows.
(result,) = client.do_action(flight.Action("routing", b""))
routing = json.loads(result.body.to_pybytes())
key = numpy.asarray(ids, dtype=numpy.int64).view(numpy.uint64)
a, b, c = (numpy.uint64(n) for n in routing["key"]["shifts"])
m, n = (numpy.uint64(int(text, 16)) for text in routing["key"]["multipliers"])
with numpy.errstate(over="ignore"):
    key = (key ^ (key >> a)) * m
    key = (key ^ (key >> b)) * n
    key = key ^ (key >> c)
groups = [str(int(k) * routing["hash_groups"] >> 64) for k in key]
table = client.do_get(ticket({"get": {"columns": []}}, ids)).read_all()
assert table["group"].to_pylist() == groups
assert {group["name"] for group in routing["groups"]} >= set(groups)
by_name = {group["name"]: group for group in routing["groups"]}
shard = flight.connect(scheme + by_name[groups[0]]["leader"], **options)
table = shard.do_get(ticket({"get": {"group": groups[0]}}, ids[:1])).read_all()
assert table["data"][0].as_py() == data[ids[0]]


# Errors: the text begins with the reason.
def refused(text, do):
    try:
        do()
    except Exception as e:  # pyarrow has several classes for them
        assert str(e).split("Flight returned ")[-1].find(text) >= 0 or text in str(e), str(e)
        return
    raise AssertionError("not refused: " + text)


refused("[INVALID_ARGUMENT] columns: ", lambda: client.do_get(ticket({"get": {"columns": ["x"]}}, [1])).read_all())
refused("[INVALID_ARGUMENT] view: ", lambda: client.do_get(ticket({"get": {"view": ""}}, [1])).read_all())
refused("[INVALID_ARGUMENT] get: has 65537 ids", lambda: client.do_get(ticket({"get": {}}, [1] * 65537)).read_all())
refused("[INVALID_ARGUMENT] ticket: is not", lambda: client.do_get(flight.Ticket(b"\x01\x00\xff\x03")).read_all())
refused("[UNIMPLEMENTED] ListFlights is not served", lambda: list(client.list_flights()))
print("all", len(ids), "records")
