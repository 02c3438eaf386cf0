"""Puts of many records: messages that a server takes, and attempts that never write twice."""

import json
import os

import numpy as np
import pyarrow as pa
from pyarrow import flight

from . import errors
from .wire import AGAIN, FAILURES, Attempts, Lost, error_of, helps

FIELDS = {
    "id": pa.int64(), "data": pa.large_binary(), "group": pa.utf8(), "timestamp": pa.timestamp("ns", "UTC"),
    "attributes": pa.map_(pa.utf8(), pa.binary()), "request_id": pa.binary(16), "if_version": pa.utf8(),
    "if_absent": pa.bool_(),
}
# Limits of a message, of which a server takes 1,024 rows and 4 MiB.
ROWS, BYTES, DATA = 1024, 2 << 20, 1 << 20
# Messages of one stream, which are sent before their answers are read.
STREAM = 8
# Only these answers to a later attempt say what became of an earlier one that got no answer.
KNOWN = (None, "VERSION_MISMATCH", "RECORD_EXISTS", "REQUEST_ID_REUSED")
RESULT = pa.schema([("id", pa.int64()), ("status", pa.utf8()), ("message", pa.utf8()), ("version", pa.utf8())])


def put_many(store, batches, group):
    command = json.dumps({"put": {} if group is None else {"group": group}})
    descriptor, parts, messages = flight.FlightDescriptor.for_command(command), [], []
    for message in cut(batches):
        if messages and (len(messages) == STREAM or message.schema != messages[0].schema):
            parts.append(stream(store, descriptor, messages))
            messages = []
        messages.append(message)
    if messages:
        parts.append(stream(store, descriptor, messages))
    return pa.concat_tables(parts) if parts else RESULT.empty_table()


def cut(batches):
    """Record batches that are messages."""
    for batch in normal(batches):
        data = batch.column("data")
        sizes = np.diff(np.frombuffer(data.buffers()[1], np.int64)[data.offset : data.offset + len(data) + 1])
        if data.null_count:
            raise errors.Invalid("put: a row of data is null")
        if sizes.size and sizes.max() > DATA:
            at = int(sizes.argmax())
            raise errors.Invalid(f"put: id {batch.column('id')[at]} has {sizes[at]} bytes: a record above {DATA} bytes"
                                 " needs Upload, which this package does not have")
        ends, start = np.cumsum(sizes + 64), 0
        while start < batch.num_rows:
            before = ends[start - 1] if start else 0
            stop = max(start + 1, min(start + ROWS, int(np.searchsorted(ends, before + BYTES, "right"))))
            yield batch.slice(start, stop - start)
            start = stop


def normal(batches):
    """Record batches with the types of FIELDS, and with request ids."""
    if isinstance(batches, pa.Table):
        batches = batches.to_batches()
    elif isinstance(batches, pa.RecordBatch):
        batches = [batches]
    for batch in batches:
        if isinstance(batch, pa.Table):
            yield from normal(batch)
            continue
        if not isinstance(batch, pa.RecordBatch):
            raise TypeError(f"put: {type(batch).__name__} is not a pyarrow.Table or RecordBatch")
        for name in batch.schema.names:
            if name not in FIELDS:
                raise errors.Invalid(f"put: there is no column {name!r}: columns are {', '.join(FIELDS)}")
        for name in ("id", "data"):
            if name not in batch.schema.names:
                raise errors.Invalid(f"put: the column {name!r} is missing")
        if batch.num_rows == 0:
            continue
        columns = {}
        for name, column in zip(batch.schema.names, batch.columns):
            kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
            if name == "data" and not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
                raise errors.Invalid(f"put: the column 'data' is {column.type}: give binary or large_binary")
            try:
                columns[name] = column.cast(FIELDS[name])
            except pa.ArrowException as err:
                raise errors.Invalid(f"put: the column {name!r} cannot be {FIELDS[name]}: {err}") from None
        if columns["id"].null_count:
            raise errors.Invalid("put: a row of id is null")
        if "request_id" not in columns:
            n = batch.num_rows
            columns["request_id"] = pa.Array.from_buffers(pa.binary(16), n, [None, pa.py_buffer(os.urandom(16 * n))])
        yield pa.RecordBatch.from_pydict(columns)


def stream(store, descriptor, messages):
    """Sends messages until each row has an answer that stands, and returns a table of RESULT."""
    rows = sum(message.num_rows for message in messages)
    whole = pa.Table.from_batches(messages)
    status, message, version = [None] * rows, [None] * rows, [""] * rows
    doubt = np.zeros(rows, bool)
    attempts, at = Attempts(store.timeout), np.arange(rows)
    while True:
        answered, failed = send(store, descriptor, messages, attempts.left())
        again, done = [], 0
        for answer in answered:
            for i, word in enumerate(answer["status"]):
                row = at[done + i]
                status[row], version[row] = word, answer["version"][i] or ""
                message[row] = (answer.get("message") or [None] * (i + 1))[i]
                doubt[row] |= word in ("OUTCOME_UNKNOWN", "DEADLINE_EXCEEDED", "UNAVAILABLE")
                if word in AGAIN:
                    again.append(row)
            done += len(answer["status"])
        for row in at[done:]:
            status[row], message[row] = failed.reason or "UNAVAILABLE", str(failed)
            doubt[row] |= isinstance(failed, Lost) or helps(failed)
        if failed is not None and helps(failed):
            again += at[done:].tolist()
        if not again or not attempts.wait(failed):
            break
        at = np.array(again)
        messages = list(cut(whole.take(at)))
    for row in np.flatnonzero(doubt):
        if status[row] not in KNOWN:
            message[row] = f"an attempt had no answer, so the put may have been applied. Last answer: {message[row]}"
            status[row] = "OUTCOME_UNKNOWN"
    return pa.table([whole["id"], status, message, version], schema=RESULT)


def send(store, descriptor, messages, seconds):
    """Sends messages in one stream. Returns the answers, and the error that ended the stream earlier, or None."""
    answers, failed, writer = [], None, None
    try:
        writer, reader = store._wire.client(store.address).do_put(
            descriptor, messages[0].schema, store._wire.options(seconds))
        for message in messages:
            writer.write_batch(message)
        writer.done_writing()
        for message in messages:
            answer = reader.read()
            if answer is None:
                break
            answer = json.loads(answer.to_pybytes())
            if len(answer["status"]) != message.num_rows:
                raise errors.Error(f"put: {message.num_rows} rows have {len(answer['status'])} answers")
            answers.append(answer)
    except FAILURES as err:
        failed = error_of(err, "put")
    if writer is not None:
        try:
            writer.close()
        except FAILURES as err:
            closing = error_of(err, "put")
            if failed is None or closing.reason:
                failed = closing  # a write to a stream that has ended does not say why it ended
    if failed is None and len(answers) < len(messages):
        failed = Lost("put: the stream ended before all its answers")
    return answers, failed
