"""A server of docs/flight.md that holds its records in memory and fails by a script."""

import json
import struct
import threading

import pyarrow as pa
from pyarrow import flight

from sheafdb.store import SCHEMA

ERRORS = {
    "unavailable": flight.FlightUnavailableError, "invalid": pa.ArrowInvalid, "internal": flight.FlightInternalError,
    "missing": pa.ArrowKeyError, "denied": flight.FlightUnauthorizedError, "slow": flight.FlightTimedOutError,
}


def fail(text, kind="unavailable"):
    """A step of a script: the call fails at once."""
    def step(_):
        raise ERRORS[kind](text)
    return step


class Fake(flight.FlightServerBase):
    """script: for each kind of call (get, scan, read, put, routing), steps that calls take before they are served. A
    step gets the command. Where it returns a number, the stream breaks after that many batches; where it returns a
    dictionary, it has the statuses of ids; where it is None, all is well."""

    def __init__(self, mode="hash", groups=1, batch=4):
        super().__init__("grpc+tcp://127.0.0.1:0")
        self.mode, self.groups, self.batch = mode, groups, batch
        self.records, self.applied, self.puts, self.views = {}, {}, 0, {}
        self.script, self.calls, self.headers, self.lock = {}, [], [], threading.Lock()
        self.leaders = None
        self.read_at = None  # the address of the endpoints of scans
        self.address = f"127.0.0.1:{self.port}"

    def step(self, kind, command):
        with self.lock:
            self.calls.append((kind, command))
            steps = self.script.get(kind) or [None]
            step = steps.pop(0) if self.script.get(kind) else None
        return step(command) if callable(step) else step

    def seen(self, command):
        """The records that a command reads."""
        view = command.get("view")
        if view is None:
            return self.records
        if view not in self.views:
            raise pa.ArrowInvalid(f"[VIEW_EXPIRED] view {view}: there is no such view")
        return self.views[view]

    def rows(self, keys, columns, statuses=None, records=None):
        records = self.records if records is None else records
        rows = {name: [] for name in SCHEMA.names}
        for group, id in keys:
            data = records.get((group, id))
            status = (statuses or {}).get(id) or (None if data is not None else "RECORD_NOT_FOUND")
            full = dict(version="1", attributes=[], size=len(data or b""), crc32c=1, data=data)
            rows["group"].append(group)
            rows["id"].append(id)
            rows["status"].append(status)
            for name, value in full.items():
                rows[name].append(value if status is None and (columns is None or name in columns) else None)
            for name in ("timestamp", "commit_time"):
                rows[name].append(None)
        return pa.RecordBatch.from_pydict(rows, schema=SCHEMA)

    def do_get(self, context, ticket):
        command, end = json.JSONDecoder().raw_decode(ticket.ticket.decode("latin-1"))
        if "get" in command:
            body = ticket.ticket[end:]
            get = command["get"]
            keys = [(get.get("group", "0"), id) for id in struct.unpack(f"<{len(body) // 8}q", body)]
            step = self.step("get", (get, [id for _, id in keys]))
        else:
            get = command["read"]
            ids = sorted(id for group, id in self.seen(get) if group == get["group"] and id > get["after"])
            keys = [(get["group"], id) for id in ids]
            step = self.step("read", get)
        statuses = step if isinstance(step, dict) else None
        records = self.seen(get)

        def stream():
            for n, start in enumerate(range(0, len(keys), self.batch)):
                if step == n and not isinstance(step, dict):
                    raise flight.FlightUnavailableError("[STOPPING] the server stops")
                part = keys[start : start + self.batch]
                batch = self.rows(part, get.get("columns"), statuses, records)
                after = {"read": {**get, "after": part[-1][1]}}
                yield batch if "get" in command else (batch, json.dumps(after).encode())
            if step == "damaged":
                raise pa.ArrowInvalid("[DAMAGED] 3 entries cannot be read")
        return flight.GeneratorStream(SCHEMA, stream())

    def get_flight_info(self, context, descriptor):
        scan = json.loads(descriptor.command)["scan"]
        self.step("scan", scan)
        endpoints = []
        for group in scan.get("groups") or sorted({g for g, _ in self.seen(scan)}):
            read = {"group": group, "after": -(2**63), "columns": scan.get("columns"), "view": scan.get("view")}
            ticket = json.dumps({"read": read})
            facts = json.dumps({"group": group, "records": 5, "bytes": 9}).encode()
            location = f"grpc+tcp://{self.read_at or self.address}"
            endpoints.append(flight.FlightEndpoint(ticket, [location], None, facts))
        return flight.FlightInfo(SCHEMA, descriptor, endpoints, -1, -1)

    def do_put(self, context, descriptor, reader, writer):
        put = json.loads(descriptor.command)["put"]
        step = self.step("put", put)
        for n, chunk in enumerate(reader):
            answers = {"status": [], "message": [], "version": [], "commit_time": [], "repeated": []}
            if step == n:
                raise flight.FlightUnavailableError("[STOPPING] the server stops")
            assert chunk.data.num_rows <= 1024 and chunk.data.nbytes <= 4 << 20
            for row in chunk.data.to_pylist():
                group = put.get("group") or row.get("group") or "0"
                status = (step or {}).get(row["id"]) if isinstance(step, dict) else None
                self.puts += 1
                repeated = row["request_id"] in self.applied
                if status in (None, "OUTCOME_UNKNOWN") and not repeated:
                    self.applied[row["request_id"]] = row["id"]
                    self.records[group, row["id"]] = row["data"]
                answers["status"].append(status)
                answers["message"].append(status and f"{status} of {row['id']}")
                answers["version"].append("" if status else "v")
                answers["commit_time"].append(None)
                answers["repeated"].append(repeated)
            if step == ("unanswered", n):
                raise flight.FlightUnavailableError("connection reset")
            writer.write(pa.py_buffer(json.dumps(answers).encode()))

    def view_action(self, name, body):
        if name == "open-view":
            view = f"view-{len(self.views)}"
            self.views[view] = {k: v for k, v in self.records.items() if k[0] in body.get("groups", [k[0]])}
        else:
            view = body["view"]
            self.seen(body)
        if name == "close-view":
            del self.views[view]
            return {}
        groups = sorted({g for g, _ in self.views[view]})
        return {"view": view, "groups": groups, "opened_unix_ns": 1, "expires_unix_ns": body["expires_seconds"]}

    def do_action(self, context, action):
        if action.type != "routing":
            body = json.loads(action.body.to_pybytes() or b"{}")
            self.step(action.type, body)
            if action.type == "list-views":
                for view, records in self.views.items():
                    answer = {"view": view, "groups": sorted({g for g, _ in records}), "opened_unix_ns": 1,
                              "expires_unix_ns": 2, "lost": {"0": "its disk is gone"}}
                    yield flight.Result(pa.py_buffer(json.dumps(answer).encode()))
                return
            yield flight.Result(pa.py_buffer(json.dumps(self.view_action(action.type, body)).encode()))
            return
        self.step("routing", None)
        count = self.groups
        for g in range(count):
            leader = self.leaders[g] if self.leaders else self.address
            row = {"name": str(g), "leader": leader, "addresses": [leader]}
            table = {"epoch": 1, "store": "11111111-2222-3333-4444-555555555555", "mode": self.mode, "groups": [row]}
            if self.mode == "hash":
                table["hash_groups"] = count
            yield flight.Result(pa.py_buffer(json.dumps(table).encode()))
