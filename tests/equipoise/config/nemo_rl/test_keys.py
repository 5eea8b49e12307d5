"""Which keys a checkout has, and what the files of the versions make of the schema."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.config import LoadedConfig, load_config
from equipoise.config.flags import CONFIG_FOLDER
from equipoise.config.nemo_rl.checkout import join_types, knows, read_keys
from equipoise.config.nemo_rl.schema import read_type, versions, whole_schema
from equipoise.config.schema import Config
from equipoise.config.training_words import parse_flags
from equipoise.config.validate import known_keys
from tests.nemo_rl_checkout import write_checkout

GRPO = """
from typing import Annotated, Any, Literal, NotRequired, Optional
from nemo_rl.models import GenerationConfig, Kind
from somewhere import Foreign
import os

class GRPOConfig(BaseModel, extra="allow"):
    steps: int = 1
    rate: float | int = 0.5
    kind: Kind = "a"
    penalty: "Optional[float]" = None
    where: str | os.PathLike
    names: list[str]
    weights: dict[str, float] = {}
    anything: Foreign
    checked: Annotated[int, Field(gt=0)]

class MasterConfig(BaseModel, extra="allow"):
    grpo: GRPOConfig
    generation: NotRequired[GenerationConfig | None]
"""
MODELS = """
from typing import Any, Literal, TypedDict
Kind = Literal["a", "b"]

class Off(TypedDict):
    enabled: Literal[False]

class On(TypedDict):
    enabled: Literal[True]
    size: int
    inner: "On"

class GenerationConfig(TypedDict):
    backend: str
    packing: On | Off
    entries: list[On]
"""
BACKEND = """
from nemo_rl.models import GenerationConfig

class VllmConfig(GenerationConfig):
    vllm_kwargs: dict
"""
EXAMPLE = """
defaults: ../grandparent.yaml
grpo: {steps: null, extra: 1.5, derived: "${grpo.steps}", open: {a: 1}}
generation: {_override_: true, packing: {other: yes}, vllm_kwargs: {free: 1}}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A NeMo-RL of a few keys."""
    files = {
        "nemo_rl/algorithms/grpo.py": GRPO,
        "nemo_rl/models/__init__.py": MODELS,
        "nemo_rl/models/vllm.py": BACKEND,
        "examples/configs/grpo_small.yaml": EXAMPLE,
        "examples/grandparent.yaml": "top: {a: 1}\ngrpo: {inherited: hello}",
        "examples/configs/dpo.yaml": "dpo: {beta: 1}",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_keys_and_types_are_those_of_the_classes_and_of_the_examples(checkout):
    assert read_keys(checkout) == {
        "generation": "section | None",
        "generation.backend": "str",
        "generation.entries": "list[section]",
        "generation.entries.enabled": "bool",
        "generation.entries.inner": "section",
        "generation.entries.size": "int",
        "generation.packing": "section",
        "generation.packing.enabled": "bool",
        "generation.packing.inner": "section",
        "generation.packing.other": "bool | None",
        "generation.packing.size": "int",
        "generation.vllm_kwargs": "dict[str, Any]",
        "grpo": "section",
        "grpo.anything": "Any",
        "grpo.checked": "int",
        "grpo.derived": "Any",
        "grpo.extra": "float | None",
        "grpo.inherited": "str | None",
        "grpo.kind": "Literal['a', 'b']",
        "grpo.names": "list[str]",
        "grpo.open": "dict[str, Any] | None",
        "grpo.penalty": "float | None",
        "grpo.rate": "float",
        "grpo.steps": "int | None",
        "grpo.weights": "dict[str, float]",
        "grpo.where": "str",
        "top": "dict[str, Any] | None",
    }


def test_a_folder_that_is_no_checkout(tmp_path):
    with pytest.raises(ValueError, match="has no nemo_rl"):
        read_keys(tmp_path)


def test_the_types_of_a_file_are_types():
    for keys in versions().values():
        for key, text in keys.items():
            assert read_type(text, dict) is not None, key
            assert join_types([text]) == text or " | " in text, key


def test_every_key_of_every_version_is_known():
    known = set(known_keys(whole_schema()))
    for version, keys in versions().items():
        assert set(keys) - known == set(), version


def test_every_key_that_equipoise_reads_is_one_of_nemo_rl():
    ours = {key for key in known_keys(Config) if not key.startswith("equipoise")}
    unknown = ours.difference(*versions().values())
    assert {key for key in unknown if not key.startswith("policy.optimizer.kwargs.")} == set()


#: Keys that Equipoise reads and a tried version has not. A run there must do without them, which
#: nothing but its code decides: NeMo-RL ignores a key that it does not know.
LACKING = {
    "v0.7.0": {
        *("grpo.val_num_generations_per_prompt", "grpo.stop_at_validation_metric", "async_rl"),
    }
}


def test_a_key_that_a_tried_version_renamed_is_noticed():
    ours = {key for key in known_keys(Config) if not key.startswith("equipoise")}
    lacking = {
        name: {key for key in ours if not knows(keys, key)} for name, keys in versions().items()
    }
    assert {name: keys for name, keys in lacking.items() if keys} == LACKING


def test_a_command_writes_the_file_of_a_version(checkout, tmp_path):
    file = tmp_path / "v0.8.0.json"
    words = [sys.executable, "-m", "equipoise.config.nemo_rl", str(checkout), str(file)]
    subprocess.run(words, check=True, capture_output=True)
    assert json.loads(file.read_text()) == read_keys(checkout)


class TestWarnings:
    @pytest.fixture
    def installed(self, checkout, monkeypatch):
        """A checkout that can be used, whose `grpo` lacks what only one real version has."""
        own = {path: path.read_text() for path in checkout.rglob("*.*") if path.is_file()}
        write_checkout(checkout)
        for path, text in own.items():
            path.write_text(f"{path.read_text()}\n{text}" if path.suffix == ".py" else text)
        (checkout / "nemo_rl" / "package_info.py").write_text("__version__ = '0.6.9'")
        base = checkout / "examples" / "configs" / "grpo_math_1B.yaml"
        base.write_text("grpo: {val_at_end: true}")
        monkeypatch.setenv("NEMO_RL_PATH", str(checkout))

    def load(self, *words: str) -> LoadedConfig:
        scale = ("--config", str(CONFIG_FOLDER / "medium.yaml"), "--engine", "nemo_rl")
        return load_config("fairness", parse_flags("", [*scale, *words]))

    def test_a_key_of_one_version_alone_is_accepted_and_said_where_it_is_not_known(self, installed):
        (said,) = self.load("grpo.val_num_generations_per_prompt=2").warnings
        assert "grpo.val_num_generations_per_prompt" in said
        assert "main-7ea279a" in said
        assert "0.6.9 does not know it" in said

    def test_nothing_is_said_of_keys_that_all_versions_have(self, installed):
        assert self.load("grpo.val_at_end=true").warnings == ()

    def test_nothing_is_said_where_nothing_is_installed(self, monkeypatch):
        monkeypatch.setenv("NEMO_RL_PATH", "/nowhere")
        loaded = self.load("grpo.val_num_generations_per_prompt=2")
        assert loaded.warnings == ()
