from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from capplan.schema import DataError
from capplan.traffic.public_traces import fetch, list_traces
from capplan.traffic.readers import FORMATS, read_trace

TEXT = b"arrival_s,prompt_tokens,output_tokens\n1,10,2\n2,11,3\n"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Serve a trace on loopback; yield its entry and the folder it is served from."""
    monkeypatch.delenv("CAPPLAN_DATA", raising=False)
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "trace.csv").write_bytes(TEXT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    Thread(target=server.serve_forever, daemon=True).start()
    entry = replace(
        list_traces()[0],
        url=f"http://127.0.0.1:{server.server_port}/trace.csv",
        sha256=hashlib.sha256(TEXT).hexdigest(),
        local="traces/t.csv",
    )
    yield entry, folder
    server.shutdown()
    server.server_close()


def test_a_trace_is_downloaded_once_and_kept(home, tmp_path):
    entry, folder = home
    first = fetch(entry, cache=tmp_path / "cache")
    assert first.read_bytes() == TEXT
    (folder / "trace.csv").unlink()
    assert fetch(entry, cache=tmp_path / "cache") == first
    assert len(read_trace(first)) == 2


def test_a_wrong_checksum_is_a_clear_error_and_leaves_nothing_behind(home, tmp_path):
    entry, folder = home
    (folder / "trace.csv").write_bytes(TEXT + b"3,1,1\n")
    with pytest.raises(DataError, match="a file with SHA-256"):
        fetch(entry, cache=tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix == ".csv"]


def test_a_missing_file_is_a_connection_error_that_names_the_address(home, tmp_path):
    entry, _ = home
    gone = replace(entry, url=entry.url.replace("trace.csv", "gone.csv"))
    with pytest.raises(ConnectionError, match=r"gone\.csv: cannot be downloaded"):
        fetch(gone, cache=tmp_path / "cache")


@pytest.mark.parametrize("packed", [False, True])
def test_with_the_shared_folder_set_a_trace_comes_from_there(home, tmp_path, monkeypatch, packed):
    entry, _ = home
    monkeypatch.setenv("CAPPLAN_DATA", str(tmp_path))
    (tmp_path / "traces").mkdir()
    name = "t.csv.gz" if packed else "t.csv"
    (tmp_path / "traces" / name).write_bytes(gzip.compress(TEXT) if packed else TEXT)
    assert fetch(entry, cache=tmp_path / "cache") == tmp_path / "traces" / name
    assert not (tmp_path / "cache").exists()
    (tmp_path / "traces" / name).write_bytes(TEXT + b"x")
    with pytest.raises(DataError, match="a file with SHA-256"):
        fetch(entry)


def test_every_public_trace_has_a_home_a_checksum_and_terms():
    assert len({trace.name for trace in list_traces()}) == len(list_traces())
    for trace in list_traces():
        assert trace.url.startswith("https://")
        assert len(trace.sha256) == 64
        assert trace.licence
        assert trace.attribution
        assert trace.format in FORMATS


@pytest.mark.parametrize(
    "name", ["azure-2023-conv", "azure-2023-code", "mooncake-conversation", "mooncake-synthetic"]
)
def test_the_public_traces_at_hand_are_the_originals(shared_data, monkeypatch, name):
    monkeypatch.setenv("CAPPLAN_DATA", str(shared_data))
    entry = next(trace for trace in list_traces() if trace.name == name)
    assert read_trace(fetch(entry)).format == entry.format
