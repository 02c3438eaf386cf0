"""What malloc keeps for messages."""

import os
import platform
import subprocess
import sys

import pytest

from sheafdb import memory

# A reader as its first connection leaves it: nothing answers at the address.
READER = """
import sys
import model
from sheafdb.wire import Wire
if "connect" in sys.argv:
    Wire().client("127.0.0.1:9")
print(model.page_faults([0])[0])
"""


def faults(*args, **settings):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    ended = subprocess.run([sys.executable, "-c", READER, *args], env=env | settings, capture_output=True, text=True,
                           check=True, cwd=os.path.dirname(__file__))
    return int(ended.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc is not that of glibc")
def test_a_connection_teaches_malloc_to_keep_messages():
    many = 3000  # 16 MiB have 4,096 pages
    assert faults() > many > 3 * faults("connect")
    assert faults("connect", MALLOC_TRIM_THRESHOLD_="131072") > many  # a setting of the environment stays
    assert faults("connect", GLIBC_TUNABLES="glibc.malloc.trim_threshold=131072") > many


@pytest.mark.parametrize("name, value", [
    ("MALLOC_ARENA_MAX", "2"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1"),
])
def test_settings_of_malloc_are_kept(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert not memory.keep_freed()


@pytest.mark.parametrize("library", [object(), None])
def test_without_glibc_malloc_is_left_alone(monkeypatch, library):
    def load(_):
        if library is None:
            raise OSError("there is no such library")
        return library

    monkeypatch.setattr(memory.ctypes, "CDLL", load)
    assert not memory.keep_freed()
