"""Connections to gateways and shards, their errors, and the pauses between attempts."""

import os
import random
import re
import threading
import time

import pyarrow as pa
from pyarrow import flight

from . import errors, memory

# Reasons after which another attempt can help. The table is in docs/clients.md.
AGAIN = frozenset((
    "GROUP_LOADING", "NO_LEADER", "STOPPING", "SLOW_READER", "ETCD_UNAVAILABLE", "SHARD_UNREACHABLE", "UNAVAILABLE",
    "WRONG_SHARD", "NOT_LEADER", "OVERLOADED", "OUTCOME_UNKNOWN", "DEADLINE_EXCEEDED",
))
# Reasons of one shard after which a gateway may still find another copy.
OTHERS_MAY = ("GROUP_FAILED", "VIEW_EXPIRED")
# One attempt has at most this many seconds, so that a server that hangs leaves time for another.
ATTEMPT = 30.0
# What a server must answer within, before a connection counts as broken, in milliseconds.
KEEPALIVE = [("grpc.keepalive_time_ms", 20000), ("grpc.keepalive_timeout_ms", 10000),
             ("grpc.max_reconnect_backoff_ms", 1000), ("grpc.initial_reconnect_backoff_ms", 100)]

_TEXT = re.compile(r"\[([A-Z][A-Z0-9_]*)\] ?(?:\(((?:[a-z_]+=[^ ()=]+ ?)+)\) ?)?(.*)", re.DOTALL)
# Words that gRPC and pyarrow add behind the text of the server.
_ADDED = re.compile(r"\.? (?:gRPC client debug context|Client context|Detail): .*", re.DOTALL)


class Lost(errors.Unavailable):
    """No server has answered: the connection failed, or the time was up."""


def error_of(err, call):
    """The error of this package for an error of pyarrow."""
    text = str(err)
    found = _TEXT.search(text)
    if found:
        reason, facts, message = found[1], dict(f.split("=", 1) for f in (found[2] or "").split()), found[3]
        wait = facts.get("retry_after_ms", "")
        kind = errors.BY_REASON.get(reason, errors.Error)
        if kind is errors.Error and isinstance(err, flight.FlightUnavailableError):
            kind = errors.Unavailable
        message = _ADDED.sub("", message).strip()
        return kind(f"{call}: [{reason}] {message}", reason, int(wait) / 1000 if wait.isdecimal() else None,
                    facts.get("address", ""))
    text = _ADDED.sub("", text).strip()
    if isinstance(err, (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError)):
        return Lost(f"{call}: {text}")
    if isinstance(err, (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError)):
        return errors.Denied(f"{call}: {text}")
    return errors.Error(f"{call}: {text}")


# What calls of pyarrow.flight raise.
FAILURES = (flight.FlightError, pa.ArrowException, KeyError, ValueError, NotImplementedError, OSError)


def helps(err):
    """Whether another attempt of a read, or of a write with a request id, can help."""
    if isinstance(err, errors.Unavailable) or err.reason in AGAIN:
        return True
    return err.reason == "QUOTA_EXCEEDED" and err.retry_after is not None


class Attempts:
    """The attempts of one call, until its time is up."""

    def __init__(self, seconds):
        self.end, self.pause = time.monotonic() + seconds, 0.005

    def left(self):
        """The seconds of the next attempt."""
        return max(0.05, min(ATTEMPT, self.end - time.monotonic()))

    def wait(self, err=None):
        """Waits before the next attempt, and reports whether there is one. Pauses grow and have a random part, so that
        many clients do not come back at the same moment."""
        self.pause = min(2 * self.pause, 0.5)
        pause = max(self.pause * random.uniform(0.5, 1), (err and err.retry_after) or 0)
        if time.monotonic() + pause >= self.end:
            return False
        time.sleep(pause)
        return True

    def went_on(self):
        """Begins with short pauses again, because an attempt brought something."""
        self.pause = 0.005


class File:
    """A file that is read again when it has changed."""

    def __init__(self, path):
        self.path, self.mark, self.content = path, None, None

    def read(self):
        try:
            stat = os.stat(self.path)
            mark = stat.st_mtime_ns, stat.st_size, stat.st_ino
            if mark != self.mark:
                with open(self.path, "rb") as file:
                    self.content = file.read()
                self.mark = mark
        except OSError as err:
            raise errors.Error(f"{self.path}: {err.strerror}") from err
        return self.content


class Wire:
    """Connections to servers by their address. They are made when they are first used."""

    def __init__(self, ca=None, cert=None, key=None, token_file=None):
        self.ca, self.cert, self.key, self.token_file = ca, cert, key, token_file
        self._files = [File(path) if path else None for path in (ca, cert, key)]
        self._token = File(token_file) if token_file else None
        self._lock, self._clients, self._pid = threading.Lock(), {}, None

    def __reduce__(self):
        return Wire, (self.ca, self.cert, self.key, self.token_file)

    def client(self, address):
        """A connection. It is a new one when a certificate has changed."""
        self._check_process()
        with self._lock:
            material = tuple(file and file.read() for file in self._files)
            found = self._clients.get(address)
            if found and found[0] == material:
                return found[1]
            made = self._dial(address, *material)
            self._clients[address] = material, made
            return made

    def options(self, seconds):
        headers = [(b"authorization", b"Bearer " + self._token.read().strip())] if self._token else []
        return flight.FlightCallOptions(timeout=seconds, headers=headers)

    def close(self):
        with self._lock:
            clients, self._clients = self._clients, {}
        if self._pid in (None, os.getpid()):
            for _, made in clients.values():
                made.close()

    def _check_process(self):
        # A fork copies locks and sockets of gRPC, but not the threads that serve them: calls would wait for ever.
        if self._pid is None:
            self._pid = os.getpid()
        elif self._pid != os.getpid():
            raise errors.Forked("this store was used before a fork, and its connections do not work behind it. Connect"
                                " in the new process, or start processes with multiprocessing's \"spawn\"")

    def _dial(self, address, ca, cert, key):
        memory.learn()
        address = address.split("://")[-1]
        if not self.ca:
            return flight.FlightClient(f"grpc+tcp://{address}", generic_options=KEEPALIVE)
        return flight.FlightClient(f"grpc+tls://{address}", tls_root_certs=ca, cert_chain=cert, private_key=key,
                                   generic_options=KEEPALIVE)
