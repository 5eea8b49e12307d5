"""The hub and the model behind it, against a server that answers as its own does."""

import json
import socket
from dataclasses import replace

import pytest
from huggingface_hub import constants
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from equipoise.commands.doctor.task import model
from equipoise.files import hub
from tests.equipoise.commands.doctor.conftest import LARGE, SMALL
from tests.refusals import refusal

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


class TestHub:
    @pytest.fixture(autouse=True)
    def _loopback(self, web, monkeypatch, tmp_path):
        monkeypatch.setattr(constants, "ENDPOINT", web.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        hub._unreachable.cache_clear()
        yield
        hub._unreachable.cache_clear()

    @pytest.fixture
    def large(self, case):
        return case("fairness", *LARGE)

    def gate(self, web, status, code):
        headers = {"X-Error-Code": code, "X-Error-Message": f"Access to {LLAMA} is restricted."}
        web.pages[f"/api/models/{LLAMA}/auth-check"] = (status, headers, {"error": "restricted"})

    @pytest.mark.parametrize(
        ("status", "code", "said"),
        [
            (401, "GatedRepo", f"model.gated | huggingface.co/{LLAMA}"),
            (403, "GatedRepo", f"model.gated | huggingface.co/{LLAMA}"),
            (404, "RepoNotFound", "model.unknown-name"),
        ],
    )
    def test_a_model_that_it_does_not_give(self, web, large, status, code, said):
        self.gate(web, status, code)
        with refusal(said):
            list(model(large))

    @pytest.mark.parametrize(("status", "found"), [(200, "ok"), (503, "not checked")])
    def test_a_hub_that_gives_it_or_is_ill(self, web, large, status, found):
        self.gate(web, status, "")
        (result,) = model(large)
        assert result.status == found

    def test_a_hub_that_is_not_there(self, web, large, monkeypatch):
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
        (result,) = model(large)
        assert (result.status, LLAMA in result.says) == ("not checked", True)
        (unasked,) = model(replace(large, online=False))
        assert unasked.status == "not checked"

    def test_a_hub_that_is_silent_is_not_waited_for(self, large, monkeypatch):
        monkeypatch.setattr(hub, "_SECONDS", 0.1)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"http://127.0.0.1:{silent.getsockname()[1]}"
            monkeypatch.setattr(constants, "ENDPOINT", address)
            (result,) = model(large)
        assert (result.status, "cannot be reached" in result.says) == ("not checked", True)

    def test_a_node_without_a_network_needs_the_model_on_its_disk(self, large, monkeypatch):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        (result,) = model(large)
        assert (result.status, "hf download" in result.remedy) == ("failure", True)


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path):
        """A model of one file of weights, as transformers writes it."""
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
        (folder / "model.safetensors").write_bytes(b"weights")
        Tokenizer(WordLevel({"a": 0})).save(str(folder / "tokenizer.json"))
        self.settings(folder, chat_template="{{messages[0].content}}")
        return folder

    def settings(self, folder, **more):
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | more
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))

    def look(self, case, folder, *words):
        return list(model(case("fairness", *SMALL, "--model-name", folder, *words, online=False)))

    def test_a_whole_one(self, case, folder):
        (result,) = self.look(case, str(folder))
        assert result.status == "ok"

    @pytest.mark.parametrize(
        ("file", "text", "code"),
        [
            ("tokenizer.json", None, "tokenizer.unavailable"),
            ("config.json", None, "model.no-config"),
            ("config.json", "{", "file.invalid-json"),
        ],
    )
    def test_what_it_lacks(self, case, folder, file, text, code):
        (folder / file).unlink() if text is None else (folder / file).write_text(text)
        with refusal(code, str(folder)):
            self.look(case, str(folder))

    def test_a_base_model_is_given_a_chat_template(self, case, folder):
        self.settings(folder)
        with refusal("tokenizer.no-template", "policy.tokenizer.chat_template"):
            self.look(case, str(folder))
        (folder / "own.jinja").write_text("{{messages[0].content}}")
        word = f"policy.tokenizer.chat_template={folder}/own.jinja"
        assert [result.status for result in self.look(case, str(folder), word)] == ["ok"]

    def test_an_adapter_is_no_model(self, case, folder):
        (folder / "model.safetensors").unlink()
        with refusal("model.no-weights"):
            self.look(case, str(folder))

    def test_a_chat_template_that_no_run_can_use(self, case, folder):
        """It refuses the prompts, or writes the date into them."""
        self.settings(folder, chat_template="{{ raise_exception('no') }}")
        with refusal("tokenizer.refused-messages"):
            self.look(case, str(folder))
        self.settings(folder, chat_template="{{ strftime_now('%d %b %Y') }}")
        with refusal("tokenizer.dated-template"):
            self.look(case, str(folder))

    def test_prompts_that_hold_its_control_tokens(self, case, folder):
        self.settings(folder, chat_template="{{messages[0].content}}", eos_token="patient")
        with refusal("prompts.control-tokens", "has patient"):
            self.look(case, str(folder))


def test_a_packaged_model_needs_its_package_and_no_hub(case, monkeypatch, tmp_path):
    packaged = case("fairness", "--model-name", "smollm2")
    monkeypatch.setattr("equipoise.files.packaged_models.find_spec", lambda _: None)
    with refusal("packaged-model.missing-package"):
        list(model(packaged))
    monkeypatch.setattr("equipoise.files.hub.shipped_file", lambda _: tmp_path)
    (result,) = model(packaged)
    assert result.status == "ok"
