"""Records of any size, against a model of a gateway that breaks connections, and against `sheaf dev`."""

import json
import os
import pickle
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import sheafdb
from conftest import Dev, free_port
from sheafdb import errors

DATA = bytes(range(256)) * 20000


class Model(BaseHTTPRequestHandler):
    """A gateway with one record. `faults` has what each of the next requests meets: a number of bytes after which the
    connection breaks, or a status with a reason."""

    protocol_version = "HTTP/1.1"
    faults, asked, version, data = [], [], "v1", DATA

    def log_message(self, *_):
        pass

    def do_GET(self):
        cls = type(self)
        cls.asked.append((self.path, self.headers["Range"]))
        fault = cls.faults.pop(0) if cls.faults else None
        if isinstance(fault, tuple):
            body = json.dumps({"error": {"reason": fault[1], "message": "m", "retryAfterSeconds": 0.01}}).encode()
            self.send_response(fault[0])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        first = 0
        if self.headers["Range"] and self.headers["If-Range"] == f'"{cls.version}"':
            first = int(self.headers["Range"][len("bytes="):-1])
        body = cls.data[first:]
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{cls.version}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault == "replace":
            cls.version, cls.data, fault = "v2", DATA[::-1], 100000
        self.wfile.write(body[:fault])
        if fault is not None:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def model():
    class Own(Model):
        faults, asked = [], []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Own, sheafdb.connect("127.0.0.1:1", http="127.0.0.1:%d" % server.server_port, timeout=5)
    server.shutdown()
    thread.join()
    server.server_close()


def test_breaks_go_on_where_they_were(model, tmp_path):
    own, store = model
    own.faults = [1 << 20, 0, (503, "GROUP_LOADING"), (429, "QUOTA_EXCEEDED"), 100]
    path = tmp_path / "data"
    assert pickle.loads(pickle.dumps(store)).download(-7, path, group="a.b") == str(path)
    assert path.read_bytes() == DATA and os.listdir(tmp_path) == ["data"]
    assert own.asked[0] == ("/v1/records/a.b/-7", None) and len(own.asked) == 6
    assert own.asked[-1][1] not in (None, "bytes=0-")


def test_another_version_begins_anew(model, tmp_path):
    own, store = model
    own.faults = ["replace"]
    store.download(7, tmp_path / "data")
    assert (tmp_path / "data").read_bytes() == DATA[::-1]
    assert own.asked[0][0] == "/v1/records/-/7" and len(own.asked) == 2


def test_a_file_is_complete_or_not_there(model, tmp_path):
    own, store = model
    path = tmp_path / "data"
    for kind, fault in {errors.NotFound: (404, "RECORD_NOT_FOUND"), errors.Damaged: (500, "DAMAGED"),
                        errors.Denied: (403, "PERMISSION_DENIED"), errors.Error: (400, "X")}.items():
        for before in None, b"before":
            own.faults = [1 << 20, fault]
            if before:
                path.write_bytes(before)
            with pytest.raises(kind):
                store.download(7, path)
            assert os.listdir(tmp_path) == (["data"] if before else [])
            if before:
                assert path.read_bytes() == before
                path.unlink()
    for wrong in 1.5, "7", True, None:
        with pytest.raises(TypeError):
            store.download(wrong, path)
    with pytest.raises(ValueError):
        store.download(2**63, path)
    with pytest.raises(ValueError, match="records-http"):
        sheafdb.connect("127.0.0.1:1").download(7, path)


@pytest.mark.parametrize("flags", [(), ("--tls",)])
def test_against_sheaf_dev(flags, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    dev = Dev(str(tmp_path / "dev"), "--records-http", address, *flags)
    try:
        env = dict(os.environ)
        if flags:
            env |= {"SHEAF_CA": dev.ca, "SHEAF_CERT": dev.cert, "SHEAF_KEY": dev.key}
        for id, data in (5, DATA), (6, b""):
            subprocess.run([os.environ["SHEAF_BINARY"], "put", str(id), "--server", dev.address], env=env, input=data,
                           stdout=subprocess.DEVNULL, check=True)
        with dev.connect(http=address) as store:
            for id, data in (5, DATA), (6, b""):
                assert store.download(id, tmp_path / f"{id}") == str(tmp_path / f"{id}")
                assert (tmp_path / f"{id}").read_bytes() == data
            with pytest.raises(errors.NotFound):
                store.download(8, tmp_path / "8")
        assert sorted(os.listdir(tmp_path)) == ["5", "6", "dev"]
    finally:
        dev.stop()
