""".env, wandb, the hub and the model behind it, against servers that answer as theirs do."""

import json
from dataclasses import replace

import pytest
from huggingface_hub import constants

from equipoise.machine import accounts
from equipoise.machine.accounts import env_file, hub, model, needs_hub, wandb
from equipoise.machine.checks import Case
from tests.equipoise.machine.conftest import LARGE, SMALL
from tests.refusals import refusal

TOKEN = "hf_TokenThatMustNeverBeShown1234"
LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


class TestEnvFile:
    def said(self, before=None):
        return {finding.status: finding for finding in env_file(Case(before=before or {}))}

    @pytest.fixture(autouse=True)
    def path(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        path = tmp_path / ".env"
        path.touch(mode=0o600)
        return path

    def test_none_is_in_order(self, path):
        path.unlink()
        assert list(self.said()) == ["ok"]

    def test_one_in_order(self, path):
        path.write_text(f"# keys\nexport HF_TOKEN={TOKEN}\nWANDB_API_KEY=\n")
        assert self.said()["ok"].says.startswith("1 variables")

    @pytest.mark.parametrize("line", [f'HF_TOKEN="{TOKEN}', TOKEN, f"HF_TOKEN: {TOKEN}"])
    def test_a_line_that_nobody_can_read(self, path, line):
        """It may hold a key, so its number is all that is said of it."""
        path.write_text(f"A=1\n{line}\nB=2\n")
        result = self.said()["failure"]
        assert "line 2" in result.says
        assert TOKEN not in result.says

    def test_others_may_read_it(self, path):
        path.chmod(0o644)
        result = self.said()["warning"]
        assert (result.remedy, "644" in result.says) == (f"chmod 600 {path}", True)

    @pytest.mark.parametrize("kind", ["folder", "latin"])
    def test_it_cannot_be_read(self, path, kind):
        path.unlink()
        if kind == "folder":
            path.mkdir()
        else:
            path.write_bytes(b"NAME=\xe9\xff")
        assert "cannot be read" in self.said()["failure"].says

    def test_what_has_no_effect(self, path):
        path.write_text("A=1\nB=2\nHF_HOME=/shared/hf\n")
        results = list(env_file(Case(before={"A": "other", "B": "2"})))
        assert [result.status for result in results] == ["warning", "warning"]
        assert results[0].says.endswith("counts: A")
        assert "HF_HOME" in results[1].says

    def test_the_library_reads_these_before_the_file_is_read(self):
        """Else the warning would be wrong."""
        assert {name for name in accounts._READ_EARLIER if not hasattr(constants, name)} <= {
            "HF_ENDPOINT"  # constants.ENDPOINT
        }


class TestWandb:
    @pytest.fixture(autouse=True)
    def _key(self, monkeypatch):
        monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
        monkeypatch.delenv("WANDB_MODE", raising=False)

    def test_without_a_key_nobody_is_asked(self, case, monkeypatch):
        monkeypatch.setattr(accounts, "login_problem", pytest.fail)
        (off,) = wandb(case("fairness", "--no-wandb"))
        (unasked,) = wandb(case("fairness", online=False))
        monkeypatch.setenv("WANDB_MODE", "offline")
        (offline,) = wandb(case("fairness", environment={"WANDB_MODE": "offline"}))
        assert [f.status for f in (off, unasked, offline)] == ["ok", "not checked", "ok"]

    @pytest.mark.parametrize(("status", "said"), [(401, "warning"), (200, "ok")])
    def test_the_real_client_asks_the_server(self, web, case, monkeypatch, status, said):
        viewer = {"id": "1", "entity": "me", "username": "me", "email": "", "flags": "{}"}
        answer = {"data": {"viewer": viewer | {"teams": {"edges": []}}}}
        web.pages["/graphql"] = (status, {}, answer)
        monkeypatch.setenv("WANDB_BASE_URL", web.url)
        (result,) = wandb(case("fairness"))
        assert result.status == said, result.says
        assert "0123456789" not in result.says
        assert web.tokens, "nobody was asked"


class TestHub:
    @pytest.fixture(autouse=True)
    def _loopback(self, web, monkeypatch, tmp_path):
        monkeypatch.setattr(constants, "ENDPOINT", web.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    @pytest.fixture
    def large(self, case):
        return case("fairness", *LARGE)

    def gate(self, web, status=403, code="GatedRepo"):
        headers = {"X-Error-Code": code, "X-Error-Message": f"Access to {LLAMA} is restricted."}
        web.pages[f"/api/models/{LLAMA}/auth-check"] = (status, headers, {"error": "restricted"})

    def test_no_token(self):
        (result,) = hub(Case())
        assert result.status == "ok"

    @pytest.mark.parametrize("needed", [True, False])
    def test_a_token_that_the_hub_refuses(self, web, large, monkeypatch, needed):
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        web.pages["/api/whoami-v2"] = (401, {}, {"error": "Invalid username or password."})
        (result,) = hub(large if needed else Case())
        assert result.status == ("failure" if needed else "warning")
        assert "HF_TOKEN" in result.says
        assert TOKEN not in result.says
        assert f"Bearer {TOKEN}" in web.tokens, "the hub was not asked"

    def test_a_token_that_it_takes(self, web, monkeypatch):
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        web.pages["/api/whoami-v2"] = (200, {}, {"type": "user", "name": "somebody"})
        (result,) = hub(Case())
        assert (result.status, "somebody" in result.says) == ("ok", True)
        (unasked,) = hub(Case(online=False))
        assert unasked.status == "not checked"

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_gated_model_names_the_page_to_visit(self, web, large, status):
        self.gate(web, status)
        with refusal("model.gated", f"huggingface.co/{LLAMA}"):
            list(model(large))

    def test_a_model_that_is_not_there(self, web, large):
        self.gate(web, 404, "RepoNotFound")
        with refusal("model.unknown-name"):
            list(model(large))

    def test_a_model_that_it_gives(self, web, large):
        web.pages[f"/api/models/{LLAMA}/auth-check"] = (200, {}, {})
        (result,) = model(large)
        assert result.status == "ok"
        assert needs_hub(large.config)

    @pytest.mark.parametrize("status", [500, 503])
    def test_a_hub_that_is_ill_says_nothing_of_the_model(self, web, large, status):
        self.gate(web, status, "")
        (result,) = model(large)
        assert result.status == "not checked"

    def test_a_hub_that_is_not_there(self, web, large, monkeypatch):
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
        (result,) = model(large)
        assert (result.status, LLAMA in result.says) == ("not checked", True)
        (unasked,) = model(replace(large, online=False))
        assert unasked.status == "not checked"

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
        (folder / "tokenizer.json").write_text("{}")
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{x}}"}))
        return folder

    def look(self, case, folder, *words):
        return list(model(case("fairness", *SMALL, "--model-name", folder, *words, online=False)))

    def test_a_whole_one(self, case, folder):
        (result,) = self.look(case, str(folder))
        assert result.status == "ok"

    @pytest.mark.parametrize(
        ("file", "text", "said"),
        [
            ("tokenizer_config.json", "{}", "no chat template"),
            ("tokenizer.json", None, "no tokenizer"),
            ("config.json", None, "no config.json"),
            ("config.json", "{", "is no JSON"),
        ],
    )
    def test_what_it_lacks(self, case, folder, file, text, said):
        (folder / file).unlink() if text is None else (folder / file).write_text(text)
        results = self.look(case, str(folder))
        assert [result.status for result in results] == ["failure"]
        assert said in results[0].says

    def test_a_base_model_is_given_a_chat_template(self, case, folder):
        (folder / "tokenizer_config.json").write_text("{}")
        (failed,) = self.look(case, str(folder))
        assert "policy.tokenizer.chat_template" in failed.remedy
        word = "policy.tokenizer.chat_template=own.jinja"
        assert [result.status for result in self.look(case, str(folder), word)] == ["ok"]

    def test_an_adapter_is_no_model(self, case, folder):
        (folder / "model.safetensors").unlink()
        with refusal("model.no-weights"):
            self.look(case, str(folder))

    def test_a_chat_template_in_a_file_of_its_own(self, case, folder):
        (folder / "tokenizer_config.json").write_text("{}")
        (folder / "chat_template.jinja").write_text("{{x}}")
        (result,) = self.look(case, str(folder))
        assert result.status == "ok"


class TestPackagedModel:
    """`smollm2`, whose weights a package ships."""

    @pytest.fixture
    def packaged(self, case):
        return case("fairness", "--model-name", "smollm2")

    def test_it_needs_its_package_and_no_hub(self, packaged, monkeypatch, tmp_path):
        monkeypatch.setattr("equipoise.models.hub.shipped_file", lambda _: tmp_path)
        assert not needs_hub(packaged.config)
        (result,) = model(packaged)
        assert (result.status, "package is installed" in result.says) == ("ok", True)

    def test_without_the_package_the_remedy_is_named(self, packaged, monkeypatch):
        monkeypatch.setattr("data_prep.packaged_models.find_spec", lambda _: None)
        with refusal("packaged-model.missing-package"):
            list(model(packaged))
