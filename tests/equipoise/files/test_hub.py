"""Whether the hub can be reached, asked of a server on this machine and of none."""

import http.server
import os
import threading
import time

import pytest
from huggingface_hub import constants

from equipoise.files import hub
from equipoise.files.hub import model_identity

UNREACHED = "the Hugging Face hub cannot be reached"


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    hub._unreachable.cache_clear()
    yield
    hub._unreachable.cache_clear()


@pytest.mark.parametrize("status", [200, 404, 503])
def test_any_answer_is_one(status, monkeypatch):
    class Answers(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(status)
            self.end_headers()

    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert hub.offline_reason() is None
        server.shutdown()
    assert not constants.HF_HUB_OFFLINE


def test_where_nobody_listens_the_client_is_told(monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert hub.offline_reason() == f"{UNREACHED}: Connection refused"
    assert constants.is_offline_mode()


def test_a_name_server_that_is_silent_is_not_waited_for(monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(hub, "_SECONDS", 0.01)
    monkeypatch.setattr(hub, "_connection_problem", lambda _: ended.wait(60) and None)
    started = time.monotonic()
    assert hub.offline_reason() == f"{UNREACHED}: no answer within 0.01 seconds"
    ended.set()
    assert time.monotonic() - started < 50


def test_a_copy_in_the_cache_is_enough_and_the_client_asks_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    copy = tmp_path / "models--org--here" / "snapshots" / "abc"
    copy.mkdir(parents=True)
    (copy / "config.json").touch()
    (copy.parents[1] / "refs").mkdir()
    (copy.parents[1] / "refs" / "main").write_text("abc")
    assert hub.missing_reason("org/here", "config.json") is None
    assert constants.is_offline_mode()
    reason = f"org/other is not on this machine, and {UNREACHED}: Connection refused"
    assert hub.missing_reason("org/other", "config.json") == reason
    assert "org/here" in str(hub.missing_reason("org/here", "tokenizer.json"))
    assert hub.missing_reason(str(tmp_path / "no"), "config.json") is None


class TestLocalCopy:
    """Files of data sets, from a hub that is a folder here."""

    @pytest.fixture
    def asked(self, tmp_path, monkeypatch):
        calls: list[tuple[str, ...]] = []

        def snapshot(name, *, repo_type, allow_patterns):
            calls.append((repo_type, name, allow_patterns))
            return str(tmp_path)

        def download(name, file, *, repo_type):
            calls.append((repo_type, name, file))
            return str(tmp_path / file)

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(hub, "snapshot_download", snapshot)
        monkeypatch.setattr(hub, "hf_hub_download", download)
        return calls

    def test_of_a_data_set_its_json_lines_or_a_file_are_fetched(self, asked, tmp_path):
        assert hub.local_copy("hf://datasets/some/books") == tmp_path
        assert (
            hub.local_copy("hf://datasets/some/exam/data/all.jsonl") == tmp_path / "data/all.jsonl"
        )
        assert asked == [
            ("dataset", "some/books", "*.jsonl"),
            ("dataset", "some/exam", "data/all.jsonl"),
        ]

    @pytest.mark.parametrize("source", ["some/books", "some/exam/all.jsonl", "nothing"])
    def test_what_cannot_be_had_is_one_line_with_the_remedy(self, source, monkeypatch):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(ValueError, match=r"cannot be had: .*Without a network name") as e:
            hub.local_copy(f"hf://datasets/{source}")
        assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "name",
    [
        *("model.safetensors", "pytorch_model.bin", "config.json", "chat_template.jinja"),
        *("tokenizer.json", "tokenizer.model", "vocab.txt", "merges.txt", "part/model.safetensors"),
    ],
)
def test_what_decides_an_answer_decides_the_name(tmp_path, name):
    (tmp_path / "part").mkdir()
    seen = {model_identity(str(tmp_path))}
    for text in ("one", "two", "three and more"):
        (tmp_path / name).write_text(text)
        seen.add(model_identity(str(tmp_path)))
    assert len(seen) == 4


def test_a_file_is_read_once_unless_it_was_written_again(tmp_path, monkeypatch):
    folder = str(tmp_path)
    (tmp_path / "model.safetensors").write_text("weights")
    read: list[str] = []
    digest = hub.hashlib.file_digest
    monkeypatch.setattr(
        hub.hashlib,
        "file_digest",
        lambda file, kind: read.append(file.name) or digest(file, kind),
    )
    first = model_identity(folder)
    assert model_identity(folder) == first
    assert len(read) == 1
    os.utime(tmp_path / "model.safetensors", ns=(1, 1))
    assert model_identity(folder) == first
    assert len(read) == 2
