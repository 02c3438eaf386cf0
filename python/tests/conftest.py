"""Stores of `sheaf dev`, which SHEAF_BINARY names."""

import os
import re
import socket
import subprocess

import pytest

import sheafdb


class Dev:
    """A running `sheaf dev`."""

    def __init__(self, folder, *flags):
        self.folder, self.flags, self.address = folder, flags, "127.0.0.1:0"
        self.ca = self.cert = self.key = None
        self.http = flags[flags.index("--records-http") + 1] if "--records-http" in flags else None
        self.start()

    def start(self):
        binary = os.environ.get("SHEAF_BINARY")
        if not binary:
            pytest.skip("SHEAF_BINARY is not set")
        self.process = subprocess.Popen(
            [binary, "dev", "--dir", self.folder, "--listen", self.address, "--http", "", *self.flags],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if found := re.search(r"serving on (\S+) after", line):
                self.address = found[1]
            if found := re.search(r"SHEAF_CA=(\S+) SHEAF_CERT=(\S+) SHEAF_KEY=(\S+)", line):
                self.ca, self.cert, self.key = found.groups()
            if line.startswith("Ctrl-C"):
                return
        raise RuntimeError("sheaf dev has ended:\n" + "".join(lines))

    def connect(self, **more):
        return sheafdb.connect(self.address, ca=self.ca, cert=self.cert, key=self.key, **more)

    def stop(self, kill=False):
        self.process.kill() if kill else self.process.terminate()
        self.process.wait(30)
        self.process.stdout.close()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def dev(tmp_path_factory, *flags):
    started = Dev(str(tmp_path_factory.mktemp("dev")), *flags)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    yield from dev(tmp_path_factory, "--groups", "4", "--records-http", f"127.0.0.1:{free_port()}")


@pytest.fixture(scope="session")
def secure(tmp_path_factory):
    yield from dev(tmp_path_factory, "--tls", "--routing", "named")
