"""Records of any size, which gateways serve over HTTP (docs/http.md)."""

import http.client
import json
import os
import ssl
import tempfile
import urllib.parse

from . import errors
from .wire import Attempts, Lost, helps

# Bytes that are read at a time.
PIECE = 1 << 20


def download(store, id, path, group=None):
    """Writes the newest version of a record to a file, which is complete or not there."""
    if isinstance(id, bool) or not isinstance(getattr(id, "__index__", lambda: None)(), int):
        raise TypeError(f"an id is a whole number, not {id!r}")
    if not store.http:
        raise ValueError("records of any size are read over HTTP: give connect(http=\"HOST:PORT\"), the address of"
                         " sheaf gateway --records-http")
    id, path = id.__index__(), os.fspath(path)
    if not -(2**63) <= id < 2**63:
        raise ValueError(f"id {id} has more than 64 bits")
    target = f"/v1/records/{urllib.parse.quote('-' if group is None else group, safe='')}/{id}"
    folder, name = os.path.split(os.path.abspath(path))
    handle, part = tempfile.mkstemp(prefix=f".{name[:100]}.", suffix=".part", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            _Download(store, target, f"download of record {id}", file).run()
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o666 & ~mask)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise
    return path


class _Download:
    """One download with all its attempts. Each goes on where the one before has ended, if the version is the same."""

    def __init__(self, store, target, call, file):
        self.store, self.target, self.call, self.file = store, target, call, file
        self.version, self.size, self.done = None, None, 0

    def run(self):
        attempts = Attempts(self.store.timeout)
        while True:
            before = self.done
            try:
                return self._attempt(attempts.left())
            except (OSError, http.client.HTTPException) as err:
                if isinstance(err, ssl.SSLCertVerificationError):
                    raise errors.Denied(f"{self.call}: {err}") from None
                failed = Lost(f"{self.call}: {err or type(err).__name__}")
            except errors.Error as err:
                failed = err
            if self.done > before:
                attempts = Attempts(self.store.timeout)
            if not helps(failed) or not attempts.wait(failed):
                raise failed from None

    def _attempt(self, seconds):
        headers, wire = {}, self.store._wire
        if wire._token:
            headers["Authorization"] = "Bearer " + wire._token.read().strip().decode("ascii")
        if self.done:
            headers |= {"Range": f"bytes={self.done}-", "If-Range": self.version}
        if self.version is not None and self.done == self.size:
            return
        connection = self._connect(wire, seconds)
        try:
            connection.request("GET", self.target, headers=headers)
            answer = connection.getresponse()
            if answer.status not in (200, 206):
                raise self._error(answer)
            self._begin(answer)
            while piece := answer.read(PIECE):
                self.file.write(piece)
                self.done += len(piece)
        finally:
            connection.close()
        if self.done != self.size:
            raise Lost(f"{self.call}: the answer ended after {self.done} of {self.size} bytes")

    def _connect(self, wire, seconds):
        address = self.store.http.split("://")[-1]
        if not wire.ca:
            return http.client.HTTPConnection(address, timeout=seconds)
        context = ssl.create_default_context(cafile=wire.ca)
        if wire.cert:
            context.load_cert_chain(wire.cert, wire.key)
        return http.client.HTTPSConnection(address, timeout=seconds, context=context)

    def _begin(self, answer):
        """Reads the headers of an answer. Another version begins anew."""
        length = int(answer.headers["Content-Length"])
        if answer.status == 200:
            self.version, self.size, self.done = answer.headers["ETag"], length, 0
            self.file.seek(0)
            self.file.truncate()
        elif answer.headers["ETag"] != self.version or self.done + length != self.size:
            raise errors.Error(f"{self.call}: the server's range is not the one that was asked for")

    def _error(self, answer):
        text = answer.read(1 << 16)
        try:
            found = json.loads(text)["error"]
            reason, message, wait = found["reason"], found["message"], found.get("retryAfterSeconds")
        except (ValueError, KeyError, TypeError):
            return errors.Error(f"{self.call}: the server answers {answer.status} {answer.reason}, and is no gateway")
        kind = errors.BY_REASON.get(reason, errors.Error)
        if kind is errors.Error and answer.status == 503:
            kind = errors.Unavailable
        return kind(f"{self.call}: [{reason}] {message}", reason, wait)
