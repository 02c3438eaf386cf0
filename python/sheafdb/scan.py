"""Scans: their parts, and reading parts side by side."""

import json
import queue
import threading

import numpy as np
import pyarrow as pa
from pyarrow import flight

from . import errors
from .wire import FAILURES, OTHERS_MAY, Attempts, error_of, helps

# Batches of about 1 MiB that wait for the caller, for each part that is read.
WAITING = 2


class Split:
    """A part of a scan."""

    def __init__(self, store, ticket, addresses, group, records, bytes, columns, nodes=()):
        self.store, self.ticket, self.addresses, self.columns = store, ticket, addresses, columns
        self.group, self.records, self.bytes = group, records, bytes
        self.nodes = list(nodes)  # where the addresses are

    def read(self):
        """A pyarrow.RecordBatchReader of the records of this part."""
        return read(self.store, [self], 1)

    def __repr__(self):
        return f"<split of group {self.group}: about {self.records} records, {self.bytes} bytes, at {self.addresses}>"


def plan(store, groups, columns, split_bytes, view=None, shared=False):
    command = {} if view is None else {"view": view}
    if shared:
        command["shared"] = True
    if isinstance(groups, str):
        groups = [groups]
    if groups is not None:
        command["groups"] = list(groups)
        if not command["groups"]:
            return []  # for the server, no groups means all
    if columns is not None:
        command["columns"] = columns
    if split_bytes is not None:
        command["split_bytes"] = split_bytes
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"scan": command}))
    info = store._retried("scan", lambda client, options: client.get_flight_info(descriptor, options))
    splits = []
    for endpoint in info.endpoints:
        facts = json.loads(endpoint.app_metadata or b"{}")
        addresses = [location.uri.decode() for location in endpoint.locations]
        splits.append(Split(store, endpoint.ticket.ticket, addresses, facts.get("group", ""), facts.get("records"),
                            facts.get("bytes"), columns, facts.get("nodes", ())))
    return splits


def read(store, splits, parallel):
    """A reader of all splits, of which `parallel` are read at a time."""
    if parallel < 1:
        raise ValueError(f"parallel is {parallel}: give at least 1")
    from .store import SCHEMA, selected
    columns = splits[0].columns if splits else None
    schema = selected(SCHEMA.empty_table(), columns).schema
    return pa.RecordBatchReader.from_batches(schema, batches(store, splits, min(parallel, max(1, len(splits))), schema))


def batches(store, splits, parallel, schema):
    line = Line(parallel * WAITING)
    todo = queue.SimpleQueue()
    for split in splits:
        todo.put(split)

    def work():
        try:
            while not line.left.is_set():
                try:
                    split = todo.get_nowait()
                except queue.Empty:
                    break
                try:
                    one(store, split, lambda batch: line.put(batch.select(schema.names)), line.left)
                except errors.Damaged as err:
                    line.damage.append(err)  # the other records come first
        except BaseException as err:
            line.put(err)
        finally:
            line.put(None)

    threads = [threading.Thread(target=work, daemon=True, name="sheafdb-scan") for _ in range(parallel)]
    try:
        for thread in threads:
            thread.start()
        working = parallel
        while working:
            item = line.queue.get()
            if item is None:
                working -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
        if line.damage:
            raise line.damage[0]
    finally:
        line.left.set()


class Line:
    """What was read and not yet taken."""

    def __init__(self, size):
        self.queue, self.left, self.damage = queue.Queue(size), threading.Event(), []

    def put(self, item):
        """Waits for room, unless the reader has left."""
        while not self.left.is_set():
            try:
                return self.queue.put(item, timeout=0.2)
            except queue.Full:
                pass


def one(store, split, take, left):
    """Reads one split, at a shard if the store is direct, else through the gateway. A stream that breaks goes on behind
    its last batch, through the gateway."""
    ticket, attempts = split.ticket, Attempts(store.timeout)
    shard = split.addresses[0].split("://")[-1] if store.direct and split.addresses else None
    while not left.is_set():
        try:
            # The server, or a reader that does not read, ends a stream: it needs no limit of time here.
            client = store._wire.client(shard or store.address)
            reader = client.do_get(flight.Ticket(ticket), store._wire.options(None))
            for chunk in reader:
                if chunk.app_metadata is not None:
                    ticket = chunk.app_metadata.to_pybytes()
                if chunk.data is not None and chunk.data.num_rows:
                    take(chunk.data)
                    attempts = Attempts(store.timeout)
                if left.is_set():
                    reader.cancel()
                    return
            return
        except FAILURES as err:
            failed = error_of(err, f"scan of group {split.group}")
            direct, shard = shard, None  # the gateway knows where the group is now
            if not helps(failed) and not (direct and failed.reason in OTHERS_MAY):
                raise failed from None
            if not direct and not attempts.wait(failed):
                raise failed from None


def ids(reader):
    """{group: ids} of what a reader reads."""
    parts = {}
    for batch in reader:
        names = batch.column("group").dictionary_encode()
        values = batch.column("id").to_numpy()
        words = names.dictionary.to_pylist()
        if len(words) == 1:
            parts.setdefault(words[0], []).append(values)
            continue
        numbers = names.indices.to_numpy()
        for number, word in enumerate(words):
            parts.setdefault(word, []).append(values[numbers == number])
    return {name: np.concatenate(pieces) for name, pieces in parts.items()}
