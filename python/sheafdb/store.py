"""A store, as its gateways and shards serve it over Arrow Flight (docs/flight.md)."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import flight

from . import errors, put, scan
from .download import download
from .ids import Ids
from .routing import group_of
from .view import id_of, view_of, views_of
from .wire import AGAIN, FAILURES, OTHERS_MAY, Attempts, Lost, Wire, error_of, helps

ALWAYS = ("group", "id", "status")
COLUMNS = ("group", "id", "version", "timestamp", "commit_time", "attributes", "size", "crc32c", "status", "data")
# Reasons that concern one group.
OF_GROUP = ("GROUP_NOT_FOUND", "PERMISSION_DENIED", "GROUP_FAILED")
# Ids of one call. A server takes 65,536; smaller calls run side by side.
CALL = 16384
# Calls that run side by side.
PARALLEL = 8
# A table of routes is asked for again at most this often, in seconds.
ROUTES = 1.0


def connect(address=None, *, ca=None, cert=None, key=None, token_file=None, timeout=60.0, direct=False,
            http=None):
    """A store. Nothing is sent before the first call.

    address     host:port of a gateway; $SHEAF_ADDRESS, or 127.0.0.1:7600
    ca          file with the authorities of the store, in PEM, which means TLS; $SHEAF_CA
    cert, key   files that identify the caller; $SHEAF_CERT and $SHEAF_KEY
    token_file  file with a token that identifies the caller; $SHEAF_TOKEN_FILE
    timeout     seconds of a call with all its attempts. Of a scan, the seconds without any progress
    direct      reads go to the shards themselves, which must be reachable from here
    http        host:port of a gateway's --records-http, for download; $SHEAF_HTTP_ADDRESS

    Files are read again when they change. A store can be pickled: its copy connects by itself.
    """
    env = os.environ.get
    address = address or env("SHEAF_ADDRESS") or "127.0.0.1:7600"
    ca, token_file = ca or env("SHEAF_CA"), token_file or env("SHEAF_TOKEN_FILE")
    if cert is None and key is None:
        cert, key = env("SHEAF_CERT"), env("SHEAF_KEY")
    if bool(cert) != bool(key):
        raise ValueError("a certificate needs its key, and a key its certificate: give both cert and key")
    if not ca and (cert or token_file):
        raise ValueError("a certificate or token goes over TLS alone: give ca, the authorities of the store, too")
    if not 0 < timeout < 110:
        # A group may forget a request id after two minutes, and a later attempt would write twice.
        raise ValueError(f"timeout is {timeout}: give seconds above 0 and below 110")
    return Store(address, Wire(ca, cert, key, token_file), timeout, direct, http or env("SHEAF_HTTP_ADDRESS"))


class Store:
    """Made by connect."""

    def __init__(self, address, wire, timeout, direct, http=None):
        self.address, self.timeout, self.direct, self.http = address, timeout, direct, http
        self._wire, self._threads, self._routes, self._routes_at = wire, None, None, 0.0
        self._leaders = None  # (routes, their Leaders)

    def get_many(self, ids, group=None, columns=None, view=None):
        """A pyarrow.Table with a row for each id, in their order.

        group    the group of all ids, or a sequence with the group of each; in Hash routing it may be left out. What
                 is wrong with one group of a sequence is the status of its rows, and with the group of all an error
        columns  names of what is read; group, id and status are always there. None means all ten columns

        view     a View or its id, of which the records are read; None means the newest versions

        The column status is null in rows that are complete, and else has a reason that concerns this row alone.
        """
        ids, columns, view = checked_ids(ids), checked_columns(columns), None if view is None else id_of(view)
        if len(ids) == 0:
            return selected(EMPTY, columns)
        parts = []
        for address, name, positions in self._parts(ids, group):
            for start in range(0, len(positions), CALL):
                parts.append((address, name, positions[start : start + CALL]))
        each = group is not None and not isinstance(group, str)
        if len(parts) == 1:
            found = self._get(ids, columns, view, *parts[0], each)
        else:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(PARALLEL, "sheafdb")
            calls = [self._threads.submit(self._get, ids, columns, view, *part, each) for part in parts]
            found = [piece for call in calls for piece in call.result()]
        table = pa.Table.from_batches([batch for _, batch in found])
        if view and not complete(table["status"]) and pc.any(pc.equal(table["status"], "VIEW_EXPIRED")).as_py():
            raise errors.ViewExpired(f"get of {len(ids)} ids: [VIEW_EXPIRED] view {view} has ended: open another view",
                                     "VIEW_EXPIRED")
        positions = found[0][0] if len(found) == 1 else np.concatenate([at for at, _ in found])
        if (positions[1:] < positions[:-1]).any():  # each position is there once
            table = table.take(np.argsort(positions, kind="stable"))
        return selected(table, columns)

    def download(self, id, path, group=None):
        """Writes the data of a record of any size to the file at path, and returns path. The file is complete or not
        there: one that was there before stays until the new one is whole. A connection that breaks goes on where it
        was. Needs connect(http=).

        group  the group of the id; in Hash routing it may be left out
        """
        return download(self, id, path, group)

    def scan(self, groups=None, columns=None, parallel=2, split_bytes=None, view=None):
        """A pyarrow.RecordBatchReader of the newest version of all records of these groups, or of all groups. DuckDB,
        Polars and pandas take it. `parallel` parts are read side by side, so their rows are mixed. With a view, or its
        id, the records are those of the view."""
        return scan.read(self, self.splits(groups, columns, split_bytes, view), parallel)

    def splits(self, groups=None, columns=None, split_bytes=None, view=None, shared=False):
        """The parts of a scan, as a list of Split, which can be pickled and read by other processes of this caller. A
        part that nobody reads for ten minutes ends, unless it is one of a view. If they are shared, other callers who may
        scan their groups may read them, too."""
        view = None if view is None else id_of(view)
        return scan.plan(self, groups, checked_columns(columns), split_bytes, view, shared)

    def view(self, groups=None, expires="24h", id=None):
        """A View of these groups, or of all, as they are now; or the view with this id, renewed.

        expires  how long it lasts unless it is renewed: seconds, a timedelta, or words such as "45m" or "30d", which
                 is the most
        """
        return view_of(self, groups, expires, id)

    def views(self):
        """A list of View: those of which the caller may scan all groups, the oldest first."""
        return views_of(self)

    def ids(self, groups=None, path=None):
        """The ids of these groups, or of all, as they are now: a sheafdb.Ids, in a file if there is a path."""
        table = self.routes(fresh=True)
        found = scan.ids(self.scan(groups, columns=[], parallel=4))
        ids = Ids.of(found, store=table["store"], routing=table["mode"])
        return ids.write(path) if path else ids

    def put_many(self, batches, group=None):
        """Stores records, and returns a pyarrow.Table with a row for each: id, status, message, version.

        batches  a pyarrow.Table, RecordBatch or RecordBatchReader, or an iterable of these, with columns id and data,
                 and if wanted group, timestamp, attributes, if_version, if_absent, request_id
        group    the group of all records, where there is no column and no Hash routing

        A record whose status is null is durable. With OUTCOME_UNKNOWN it may have been stored, or may still be.
        """
        return put.put_many(self, batches, group)

    def routes(self, fresh=False):
        """The table of routes, as a dictionary."""
        if fresh or self._routes is None:
            self._routes, self._routes_at = self._retried("routing", self._ask_routes), time.monotonic()
        return self._routes

    def close(self):
        """Ends the connections. A later call connects again."""
        threads, self._threads = self._threads, None
        if threads:
            threads.shutdown()
        self._wire.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce__(self):
        return Store, (self.address, self._wire, self.timeout, self.direct, self.http)

    def __repr__(self):
        return f"<store at {self.address}>"

    def _retried(self, call, attempt):
        """Calls attempt(client, options) of the gateway, until it succeeds or further attempts do not help."""
        attempts = Attempts(self.timeout)
        while True:
            try:
                return attempt(self._wire.client(self.address), self._wire.options(attempts.left()))
            except FAILURES as err:
                failed = error_of(err, call)
                if not helps(failed) or not attempts.wait(failed):
                    raise failed from None

    def _ask_routes(self, client, options):
        table = None
        for result in client.do_action(flight.Action("routing", b""), options):
            part = json.loads(result.body.to_pybytes())
            if table is None:
                table = part
            else:
                table["groups"] += part["groups"]
        if table is None:
            raise Lost("routing: the answer is empty")
        table["leaders"] = {g["name"]: g["leader"] for g in table["groups"] if g["leader"]}
        return table

    def _parts(self, ids, group):
        """(address, group, positions) of each call. Address None is the gateway."""
        if group is None or isinstance(group, str):
            if not self.direct:
                return [(None, group, np.arange(len(ids)))]
            routes = self.routes()
            if group is not None:
                return [(routes["leaders"].get(group), group, np.arange(len(ids)))]
            if routes["mode"] != "hash":
                return [(None, None, np.arange(len(ids)))]  # the gateway says what is wrong
            return self._leaders_of(routes).parts(ids)
        if len(group) != len(ids):
            raise ValueError(f"there are {len(ids)} ids, and {len(group)} groups")
        names = pa.array(group, pa.utf8()).dictionary_encode()
        if names.null_count:
            raise ValueError("the group of an id is None")
        leaders = self.routes()["leaders"] if self.direct else {}
        numbers, words = names.indices.to_numpy(), names.dictionary.to_pylist()
        return [(leaders.get(word), word, np.flatnonzero(numbers == n)) for n, word in enumerate(words)]

    def _leaders_of(self, routes):
        found = self._leaders
        if found is None or found[0] is not routes:
            found = self._leaders = routes, Leaders(routes)
        return found[1]

    def _get(self, ids, columns, view, address, group, positions, each):
        """[(positions, batch)] of one part, which the server at the address or, where it cannot, the gateway reads. If
        each id has its own group, what is wrong with a group is the status of its rows."""
        command = command_of(group, None if columns is None else tuple(columns), view)
        attempts, found, call = Attempts(self.timeout), [], f"get of {len(positions)} ids"
        waiting = []  # (positions, batch) of rows that another attempt may complete
        while len(positions):
            done, kept, failed = 0, [], None
            before, waiting = waiting, []
            try:
                wanted = np.ascontiguousarray(ids[positions], "<i8")
                reader = self._wire.client(address or self.address).do_get(
                    flight.Ticket(command + wanted.tobytes()), self._wire.options(attempts.left()))
                for chunk in reader:
                    batch = chunk.data
                    rows = slice(done, done + batch.num_rows)
                    if batch.column("id").to_numpy().tobytes() != wanted[rows].tobytes():
                        raise errors.Error(f"{call}: the server's rows are not those of the ids")
                    done = rows.stop
                    again = retryable(batch.column("status"), address)
                    if again is None:
                        found.append((positions[rows], batch))
                        continue
                    kept.append(positions[rows][again])
                    waiting.append(part_of(positions[rows], batch, again))
                    if not again.all():
                        found.append(part_of(positions[rows], batch, ~again))
            except FAILURES as err:
                failed = error_of(err, call)
            if failed is None and done < len(positions):
                failed = Lost(f"{call}: the stream ended after {done} rows")
            if done:
                attempts.went_on()
            if failed is None and not kept:
                break
            direct, address = address, None  # the gateway knows newer routes, or waits for them
            if direct:
                self._forget_routes()
            if failed and each and failed.reason in OF_GROUP and not direct:
                rest = np.concatenate(kept + [positions[done:]])
                return found + [(rest, rows_with(failed.reason, group, ids[rest]))]
            if failed and not helps(failed) and not (direct and failed.reason in OTHERS_MAY):
                raise failed from None
            if not direct and not attempts.wait(failed):
                # The time is up. Rows that had an answer keep it.
                rest = positions[done:]
                waiting += [part_of(at, batch, np.isin(at, rest)) for at, batch in before]
                if failed and sum(len(at) for at, _ in waiting) < len(rest) + sum(map(len, kept)):
                    raise failed from None
                return found + waiting
            waiting += [part_of(at, batch, np.isin(at, positions[done:])) for at, batch in before]
            positions = np.concatenate(kept + [positions[done:]])
        return found

    def _forget_routes(self):
        if time.monotonic() - self._routes_at > ROUTES:
            self._routes = None


@lru_cache(256)
def command_of(group, columns, view):
    fields = {"group": group, "columns": columns, "view": view}
    return json.dumps({"get": {name: value for name, value in fields.items() if value is not None}}).encode()


class Leaders:
    """The leaders of all groups of a store with Hash routing."""

    def __init__(self, routes):
        self.groups = routes["hash_groups"]
        addresses = [routes["leaders"].get(str(g), "") for g in range(self.groups)]
        known, self.of_group = np.unique(np.array(addresses), return_inverse=True)
        self.addresses = [str(address) or None for address in known]  # None: the gateway finds the leader

    def parts(self, ids):
        """(address, None, positions) of the ids of each leader."""
        if len(self.addresses) == 1:
            return [(self.addresses[0], None, np.arange(len(ids)))]
        numbers = self.of_group[group_of(ids, self.groups)]
        return [(self.addresses[n], None, np.flatnonzero(numbers == n)) for n in np.unique(numbers)]


def rows_with(status, group, ids):
    values = {"group": [group] * len(ids), "id": ids, "status": [status] * len(ids)}
    arrays = [pa.array(values.get(field.name, [None] * len(ids)), field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def part_of(positions, batch, mask):
    return positions[mask], batch.filter(pa.array(mask))


def complete(status):
    """Whether a column of statuses has none."""
    return status.null_count == len(status)


def retryable(status, direct=None):
    """A mask of the rows that another attempt may complete, or None if there are none. If a shard has answered, the
    gateway may find a copy that has what a view needs."""
    if complete(status):
        return None
    mask = pc.is_in(status, value_set=_AGAIN_DIRECT if direct else _AGAIN).to_numpy(zero_copy_only=False)
    return mask if mask.any() else None


def selected(table, columns):
    return table if columns is None else table.select([c for c in COLUMNS if c in ALWAYS or c in columns])


def checked_ids(ids):
    array = np.asarray(ids)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"ids are whole numbers in one dimension, not {array.dtype} in {array.ndim}")
    if array.dtype.kind == "u" and array.max() > np.uint64(2**63 - 1):
        raise ValueError(f"id {array.max()} is above the largest id, {2**63 - 1}")
    return array.astype(np.int64)  # a copy, which nobody else changes meanwhile


def checked_columns(columns):
    if columns is None:
        return None
    if isinstance(columns, str):
        raise TypeError(f"columns is {columns!r}: give a list of names")
    unknown = [c for c in columns if c not in COLUMNS]
    if unknown:
        raise ValueError(f"there is no column {unknown[0]!r}: columns are {', '.join(COLUMNS)}")
    return list(columns)


_AGAIN = pa.array(sorted(AGAIN))
_AGAIN_DIRECT = pa.array(sorted(AGAIN | {"VIEW_EXPIRED"}))
SCHEMA = pa.schema([
    pa.field("group", pa.utf8(), False), pa.field("id", pa.int64(), False), ("version", pa.utf8()),
    ("timestamp", pa.timestamp("ns", "UTC")), ("commit_time", pa.timestamp("ns", "UTC")),
    ("attributes", pa.map_(pa.utf8(), pa.binary())), ("size", pa.int64()), ("crc32c", pa.uint32()),
    ("status", pa.utf8()), ("data", pa.large_binary()),
])
EMPTY = SCHEMA.empty_table()
