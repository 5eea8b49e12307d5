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
    with pytest.raises(ValidationError, match="not a folder"):
        PolicySettings(path=Path(SHIPPED.name))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert made(RagSettings.model_validate({"index": "~/index"}), "index") == f"{tmp_path}/index"
    endpoint = EndpointSettings.model_validate(
        {"url": "http://h/v1", "model": "m", "cache_dir": "c"}
    )
    assert made(endpoint, "cache_dir") == f"{tmp_path}/c"
