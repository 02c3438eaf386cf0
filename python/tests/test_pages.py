"""The Python lines of the pages run as they stand."""

import os
import pathlib
import re

import pytest

from fake import Fake

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ["python/README.md", "docs/ml.md", "docs/clients.md"]


def lines_of(page):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    if page == "docs/clients.md":
        blocks = blocks[:1]  # the others are of examples/python
    return "\n".join(blocks)


def run(page, address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = lines_of(page)
    assert "127.0.0.1:7600" in text
    exec(compile(text.replace("127.0.0.1:7600", address), page, "exec"), {"__name__": page})


@pytest.mark.skipif(not (ROOT / PAGES[1]).exists(), reason="these tests are not in a checkout of the repository")
@pytest.mark.parametrize("page", PAGES)
def test_pages_against_a_model(page, tmp_path, monkeypatch):
    with Fake(batch=100) as server:
        run(page, server.address, tmp_path, monkeypatch)
        assert server.records
    assert not [name for name in os.listdir(tmp_path) if not name.endswith(".ids")]


@pytest.mark.parametrize("page", PAGES)
def test_pages_against_sheaf_dev(page, plain, tmp_path, monkeypatch):
    run(page, plain.address, tmp_path, monkeypatch)
