"""Plain gRPC calls to Sheaf: a put, a get, the reason of an error, a scan, and a record of 3 MiB.

This program does not retry calls. sheaf_client.py shows how a program does that.
"""
import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "gen"))
import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from sheaf.record.v1 import record_pb2 as pb, record_pb2_grpc as rpc

channel = grpc.insecure_channel("127.0.0.1:7600")
records = rpc.RecordServiceStub(channel)
key = pb.RecordKey(id=2026)
request = pb.PutRequest(key=key, data=b"from Python", request_id=os.urandom(16), attributes={"lang": b"py"})
put = records.Put(request, timeout=5)
got = records.Get(pb.GetRequest(key=key), timeout=5).record
print(got.data, dict(got.attributes), got.version == put.version)   # b'from Python' {'lang': b'py'} True

try:
    records.Get(pb.GetRequest(key=pb.RecordKey(id=404_404)), timeout=5)
except grpc.RpcError as err:
    info = error_details_pb2.ErrorInfo()
    rpc_status.from_call(err).details[0].Unpack(info)
    print(err.code(), info.reason)                                  # StatusCode.NOT_FOUND RECORD_NOT_FOUND

scanned = 0
for answer in records.Scan(pb.ScanRequest(metadata_only=True), timeout=60):
    scanned += len(answer.records)                                  # each has key.id and size_bytes, and no data
print(scanned, "records")

def parts():                                                        # a record of any size
    yield pb.UploadRequest(header=pb.UploadHeader(key=pb.RecordKey(id=500_000), request_id=os.urandom(16)))
    for _ in range(3):
        yield pb.UploadRequest(chunk=b"x" * (1 << 20))

print(records.Upload(parts(), timeout=30).size_bytes)               # 3145728
download = records.Download(pb.DownloadRequest(key=pb.RecordKey(id=500_000)), timeout=30)
print(sum(len(part.chunk.data) for part in download))               # 3145728
