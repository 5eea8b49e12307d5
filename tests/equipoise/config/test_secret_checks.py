"""No key or password gets into a file of a run by way of its configuration."""

import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

KEY = "sk-" + "a1B2" * 8
VLLM = "policy.generation.vllm_kwargs"


@pytest.mark.parametrize(
    ("word", "key"),
    [
        (f"{VLLM}.api_key=x1", f"{VLLM}.api_key"),
        (f"{VLLM}.apiKey=x1", f"{VLLM}.apiKey"),
        (f"{VLLM}.password=123456", f"{VLLM}.password"),
        (f"{VLLM}.headers={{Authorization: x1}}", f"{VLLM}.headers.Authorization"),
        (f"{VLLM}.headers={{X-Api-Key: x1}}", f"{VLLM}.headers.X-Api-Key"),
        (f"{VLLM}.api_keys=[x1, x2]", f"{VLLM}.api_keys.0"),
        (f"{VLLM}.anything={KEY}", f"{VLLM}.anything"),
        (f"{VLLM}.list=[a, {{b: {KEY}}}]", f"{VLLM}.list.1.b"),
        (f"equipoise.output_dir={KEY}", "equipoise.output_dir"),
        (f"{VLLM}.url='http://me:hunter2@host/v1'", f"{VLLM}.url"),
        (f"{VLLM}.url='https://hunter2@host/v1'", f"{VLLM}.url"),
        (f"{VLLM}.url='https://host/v1?api_key=hunter2'", f"{VLLM}.url"),
        (f"{VLLM}.header='Authorization: Bearer abcdef123456789'", f"{VLLM}.header"),
        ("policy.megatron_cfg.env_vars={HF_TOKEN: x1}", "policy.megatron_cfg.env_vars.HF_TOKEN"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(word: str, key: str, problems) -> None:
    found = problems(word)
    assert any(line.startswith(f"command line: {key}: holds what looks like") for line in found)
    assert not any("hunter2" in line or KEY in line for line in found)


@pytest.mark.parametrize(
    "word",
    [
        f"{VLLM}.api_key_env=OPENAI_API_KEY",
        f"{VLLM}.api_key=null",
        f"{VLLM}.api_key=''",
        f"{VLLM}.eos_token=<eos>",
        f"{VLLM}.max_new_tokens=48",
        f"{VLLM}.sort_key=name",
        f"{VLLM}.passed=yes",
        f"{VLLM}.url=http://localhost:8000/v1",
        f"{VLLM}.revision=4c1f8d2e9b0a4c1f8d2e9b0a4c1f8d2e9b0a4c1f",
    ],
)
def test_what_is_no_secret_is_allowed(word: str, problems) -> None:
    assert problems(word) == []


def test_a_key_in_the_place_of_a_number_is_not_repeated(problems) -> None:
    (line,) = problems(f"grpo.seed={KEY}")
    assert "grpo.seed" in line
    assert KEY not in line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SCRATCH", "/scratch/me"),
        ("HOME", "~/x"),
        ("PLACE", "./here"),
        ("NUMBER", "12"),
        ("USER", "me"),
        ("SLURM_JOB_NAME", "night"),
    ],
)
def test_paths_numbers_and_well_known_variables_are_taken_in(
    name: str, value: str, load, monkeypatch
) -> None:
    monkeypatch.setenv(name, value)
    loaded = load(f"equipoise.output_dir=x${{oc.env:{name}}}")
    assert loaded.config.equipoise.output_dir == f"x{value}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MY_SECRET", "hunter2"),
        ("HF_TOKEN", "/hunter2"),
        ("INNOCENT", "hunter2"),
        ("INNOCENT", "/hunter2/" + KEY),
        ("INNOCENT", "https://a:hunter2@b"),
        ("SLURM_JWT", "hunter2"),
        ("USER", KEY),
    ],
)
@pytest.mark.parametrize(
    "form", ["${{oc.env:{}}}", "${{oc.decode:${{oc.env:{}}}}}", "${{${{logger.wandb.name}}:{}}}"]
)
def test_any_other_variable_is_refused(
    form: str, name: str, value: str, problems, monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(name, value)
    (tmp_path / "own.yaml").write_text(
        f"logger: {{wandb: {{name: oc.env}}}}\nequipoise: {{output_dir: '{form.format(name)}'}}"
    )
    found = problems("--config", str(tmp_path / "own.yaml"))
    assert any("would be written in clear" in line for line in found)
    assert not any("hunter2" in line or KEY in line for line in found)


def test_a_variable_that_is_not_there_has_its_default(load, problems) -> None:
    assert (
        load("equipoise.output_dir=${oc.env:NO_SUCH,there}").config.equipoise.output_dir == "there"
    )
    (line,) = problems("equipoise.output_dir=${oc.env:NO_SUCH}")
    assert "'NO_SUCH' not found" in line


def test_other_programs_keep_omegaconfs_own_resolver(load) -> None:
    load()
    os.environ["OF_A_TEST"] = "hunter2"
    try:
        assert OmegaConf.create({"a": "${oc.env:OF_A_TEST}"}).a == "hunter2"
    finally:
        del os.environ["OF_A_TEST"]
