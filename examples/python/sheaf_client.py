"""A client of Sheaf that retries calls and checks data. You can import this file. If you run it, it shows its calls
against a store on 127.0.0.1:7600.

The client needs the packages of requirements.txt. It also needs the folder gen next to this file, which generate.sh
generates from the .proto files.
"""
import os, random, sys, time
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "gen"))
import google_crc32c
import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from sheaf.record.v1 import record_pb2 as pb, record_pb2_grpc as rpc

UNAVAILABLE, UNKNOWN, DEADLINE = 14, 2, 4          # canonical gRPC codes, as numbers
# A call is retried after these reasons, and after every UNAVAILABLE.
AGAIN = {"OVERLOADED", "WRONG_SHARD", "NOT_LEADER", "OUTCOME_UNKNOWN"}
# A group sends these reasons after it has looked for the request id, so they show whether the write was applied.
KNOWN = {"VERSION_MISMATCH", "RECORD_EXISTS", "REQUEST_ID_REUSED"}

class Failure(Exception):
    """A call that failed. maybe_done is true if the call is a write that the store may have applied."""
    def __init__(self, status):
        self.code, self.message, self.reason, self.wait = status.code, status.message, "", 0.0
        for detail in status.details:
            info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
            if detail.Unpack(info) and info.domain == "sheaf.dev":
                self.reason = info.reason
            elif detail.Unpack(retry):
                self.wait = retry.retry_delay.ToTimedelta().total_seconds()
        lost = self.code == UNAVAILABLE and not self.reason  # the connection failed, and Sheaf has not answered
        self.maybe_done = lost or self.code == DEADLINE or self.reason == "OUTCOME_UNKNOWN"
        # An answer about a rate quota has RetryInfo. An answer about a storage quota has none, and a retry is useless.
        rate = self.reason == "QUOTA_EXCEEDED" and self.wait > 0
        self.again = self.code in (UNAVAILABLE, DEADLINE) or self.reason in AGAIN or rate
        super().__init__(f"{self.code} {self.reason}: {self.message}")

def failure_of(err):
    status = rpc_status.from_call(err)
    return Failure(status or status_pb2.Status(code=err.code().value[0], message=err.details() or ""))

class Store:
    def __init__(self, address, seconds=60, attempt=5):
        """seconds limits a call with all its attempts. It must be below 120, because a group may forget a request id
        after that time. attempt limits one attempt, in seconds."""
        self.channel = grpc.insecure_channel(address, options=[
            ("grpc.max_receive_message_length", 16 << 20), ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.keepalive_time_ms", 20000),
        ])
        self.stub, self.seconds, self.attempt = rpc.RecordServiceStub(self.channel), seconds, attempt

    def _repeat(self, once, pending):
        """Calls once(pending, timeout), which returns a Failure for each failed item. Repeats the call for the items
        for which a retry may help, until the time is up. Returns {item: Failure} of the last failures."""
        end, pause, failed, doubt = time.monotonic() + self.seconds, 0.01, {}, set()
        while True:
            again, wait = [], 0.0
            for item, failure in once(pending, min(self.attempt, max(end - time.monotonic(), 0.05))).items():
                if failure.maybe_done:
                    doubt.add(item)
                # Only the reasons in KNOWN show whether an earlier attempt was applied.
                failure.maybe_done = item in doubt and failure.reason not in KNOWN
                failed[item] = failure
                if failure.again:
                    again.append(item)
                    wait = max(wait, failure.wait)
            pause = max(min(2 * pause, 0.5) * random.uniform(0.5, 1), wait)
            if not again or time.monotonic() + pause > end:
                return failed
            for item in again:
                del failed[item]
            pending = again
            time.sleep(pause)

    def _one(self, method, request):
        answers = []
        def once(pending, timeout):
            try:
                answers.append(method(request, timeout=timeout))
                return {}
            except grpc.RpcError as err:
                return {0: failure_of(err)}
        for failure in self._repeat(once, [0]).values():
            raise failure
        return answers[-1]

    def put(self, key, data, **fields):
        """Stores at most 1 MiB of data, and returns the version. The fields may be attributes, condition and
        timestamp_unix_ns."""
        return self._one(self.stub.Put, put_request(key, data, **fields)).version

    def get(self, key):
        """Returns the data of a record of at most 1 MiB."""
        return self.record(key).data

    def record(self, key):
        """Returns the whole record: data, attributes, timestamp, version. With
        condition=pb.WriteCondition(if_version=...), a later put succeeds only if this version is still the newest."""
        record = self._one(self.stub.Get, pb.GetRequest(key=key)).record
        checked(record)
        return record

    def delete(self, key):
        return self._one(self.stub.Delete, pb.DeleteRequest(key=key, request_id=os.urandom(16))).existed

    def put_many(self, records):
        """Stores {id: data}, and returns {id: Failure} of the puts that failed. All attempts of a put have the same
        request id."""
        puts = {id: put_request(pb.RecordKey(id=id), data) for id, data in records.items()}
        def once(pending, timeout):
            parts = split([puts[id] for id in pending], 1024, 2 << 20)
            failed, left = {}, list(pending)
            try:
                for answer in self.stub.BatchPut((pb.BatchPutRequest(puts=part) for part in parts), timeout=timeout):
                    for result in answer.results:       # in the order of the puts
                        id = left.pop(0)
                        if result.status.code:
                            failed[id] = Failure(result.status)
                if left:
                    status = status_pb2.Status(code=UNAVAILABLE, message="no answer came")
                    failed.update({id: Failure(status) for id in left})
            except grpc.RpcError as err:                # unanswered puts may have been applied
                for id in left:
                    failed[id] = failure_of(err)
                    failed[id].maybe_done = failed[id].maybe_done or failed[id].again
            return failed
        return self._repeat(once, list(puts))

    def get_many(self, ids):
        """Reads records, and returns {id: data} and {id: Failure}."""
        found = {}
        def once(pending, timeout):
            failed, left = {}, set(pending)
            try:
                for part in split([pb.GetRequest(key=pb.RecordKey(id=id)) for id in pending], 4096, 2 << 20):
                    for answer in self.stub.BatchGet(pb.BatchGetRequest(gets=part), timeout=timeout):
                        for result in answer.results:   # in any order
                            id = part[result.position].key.id
                            left.discard(id)
                            if result.status.code:
                                failed[id] = Failure(result.status)
                            else:
                                found[id] = checked(result.record)
            except grpc.RpcError as err:
                failed.update({id: failure_of(err) for id in left})
            return failed
        return found, self._repeat(once, list(ids))

    def scan(self, group=""):
        """Yields the newest version of each record of a group, or of all groups. A record above 1 MiB has no data. Use
        Download for such records."""
        def begin(at):
            return self.stub.Scan(pb.ScanRequest(cursor=at) if at else pb.ScanRequest(group=group))
        for answer in self._follow(begin):
            yield from answer.records

    def watch(self, group, cursor=b""):
        """Yields messages, each with changed records and the cursor after them. Store the cursor together with the
        results of processing these records."""
        return self._follow(lambda at: self.stub.Watch(pb.WatchRequest(group=group, cursor=at)), cursor)

    def _follow(self, begin, cursor=b""):
        """Yields the messages of a stream. A stream that breaks is started again at the last cursor."""
        end, pause = None, 0.01                         # end: time to give up, set after a failure
        while True:
            call = begin(cursor)
            try:
                for answer in call:
                    for record in answer.records:
                        checked(record)
                    cursor, end, pause = answer.cursor, None, 0.01
                    yield answer
                return
            except grpc.RpcError as err:
                failure, end = failure_of(err), end or time.monotonic() + self.seconds
                pause = max(min(2 * pause, 0.5) * random.uniform(0.5, 1), failure.wait)
                if not failure.again or time.monotonic() + pause > end:
                    raise failure from None
            finally:
                call.cancel()                           # also if the caller stops early: it frees memory
            time.sleep(pause)

def put_request(key, data, **fields):
    crc32c = google_crc32c.value(data)
    return pb.PutRequest(key=key, data=data, request_id=os.urandom(16), data_crc32c=crc32c, **fields)

def checked(record):
    if record.HasField("data_crc32c") and google_crc32c.value(record.data) != record.data_crc32c:
        raise ValueError(f"record {record.key.id}: its bytes were changed on the way")
    return record.data

def split(requests, most, most_bytes):
    """Divides requests into messages of at most the given numbers of requests and bytes. A larger request has its own
    message."""
    parts, size = [[]], 0
    for request in requests:
        n = request.ByteSize() + 16
        if parts[-1] and (len(parts[-1]) == most or size + n > most_bytes):
            parts, size = parts + [[]], 0
        parts[-1].append(request)
        size += n
    return parts if parts[-1] else []

if __name__ == "__main__":
    store = Store("127.0.0.1:7600")
    print("version", store.put(pb.RecordKey(id=1), b"hello"))
    print(store.get(pb.RecordKey(id=1)))
    print(store.put_many({id: b"many" for id in range(2, 5000)}) or "all stored")
    print(len(store.get_many(range(1, 5000))[0]), "read")
    group = store.record(pb.RecordKey(id=1)).key.group  # each id belongs to one group
    print(sum(1 for record in store.scan(group)), "records in group", group)
    changes = store.watch(group)                        # from now on, or from a cursor that you kept
    next(changes)                                       # the first message has only a cursor
    store.put(pb.RecordKey(id=1), b"changed")
    print([record.data for record in next(changes).records])
    changes.close()
