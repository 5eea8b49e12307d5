"""A path in a configuration means the same file to a worker that runs in another folder."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from environments.chat import EndpointSettings
from environments.dharma.policy import SHIPPED, PolicySettings
from environments.rag import RagSettings


def made(settings: BaseModel, name: str) -> Any:
    return settings.model_dump(mode="json")[name]


def test_a_path_is_kept_as_an_absolute_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(SHIPPED.parent)
    assert made(PolicySettings(path=Path(SHIPPED.name)), "path") == str(SHIPPED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert made(RagSettings.model_validate({"index": "~/index"}), "index") == f"{tmp_path}/index"
    endpoint = EndpointSettings.model_validate(
        {"url": "http://h/v1", "model": "m", "cache_dir": "c"}
    )
    assert made(endpoint, "cache_dir") == f"{tmp_path}/c"


@pytest.mark.parametrize(
    "url",
    ["http://judge..internal/v1", "http://[::1/v1", "http://h:99999/v1", f"http://{'a' * 64}/v1"],
)
def test_an_address_that_no_request_can_go_to_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="not an http or https address"):
        EndpointSettings.model_validate({"url": url, "model": "m"})


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"])
def test_a_key_of_another_service_is_for_no_model(name: str) -> None:
    with pytest.raises(ValidationError, match="never sent"):
        EndpointSettings.model_validate({"url": "http://h/v1", "model": "m", "api_key_env": name})
