"""No key or password gets into a file of a run, by its configuration or by a diff."""

import os
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from equipoise.config.secrets import MASK, masked_diff

KEY = "sk-" + "a1B2" * 8
VLLM = "policy.generation.vllm_kwargs"
HEADER = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n"


@pytest.mark.parametrize(
    ("file", "line", "kept"),
    [
        ("x.yaml", "+  api_key: hunter2", f"+  api_key: {MASK}"),
        ("x.yaml", "-  password: 'two words'  # mine", f"-  password: {MASK}  # mine"),
        (
            "x.yaml",
            "   {user: me, hf_token: abc, n: 1}",
            f"   {{user: me, hf_token: {MASK}, n: 1}}",
        ),
        ("x.env", "+WANDB_API_KEY=0123456789abcdef", f"+WANDB_API_KEY={MASK}"),
        ("x.json", '+  "apiKey": "hunter2",', f'+  "apiKey": {MASK},'),
        ("x.py", f'+    ask("{KEY}")', f'+    ask("{MASK}")'),
        ("x.py", '+    api_key = "correct horse"', f"+    api_key = {MASK}"),
        ("x.md", "+see http://me:hunter2@host/v1", f"+see http://{MASK}@host/v1"),
        ("x.py", "+    -----BEGIN RSA PRIVATE KEY-----", f"+    {MASK}"),
    ],
)
def test_a_secret_is_masked(file: str, line: str, kept: str) -> None:
    assert masked_diff(f"{HEADER.format(file)}{line}\n") == (f"{HEADER.format(file)}{kept}\n", 1)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("x.yaml", "+  api_key_env: OPENAI_API_KEY"),
        ("x.yaml", "+  api_key: null"),
        ("x.yaml", "+  api_key: ${oc.env:OPENAI_API_KEY}"),
        ("x.yaml", "+  max_new_tokens: 48"),
        ("x.yaml", "+  eos_token: <eos>"),
        ("x.sh", "+export HF_TOKEN=$OTHER"),
        ("x.py", "+    api_key = read_key(settings.api_key_env)"),
        ("x.py", "+    token: Annotated[str, Field(min_length=1)]"),
        ("x.py", "+index 0123456789abcdef0123456789abcdef01234567..89"),
        ("x.md", "+see http://localhost:8000/v1 and git@host:a/b"),
    ],
)
def test_anything_else_stays_as_it_is(file: str, line: str) -> None:
    diff = f"{HEADER.format(file)}{line}\n"
    assert masked_diff(diff) == (diff, 0)


@pytest.mark.parametrize(
    "unit",
    [
        *("a", "-", "_", " ", '"', "'", ":", "=", "api_key", "api_key ", "eyJ-", "eyJa.", "sk-"),
        *("://", "://a:", "http://", "?key=", "bearer ", "-----BEGIN ", "AKIA", "hf_", "token='"),
    ],
)
def test_the_time_grows_with_the_length_alone(unit: str) -> None:
    def seconds(length: int) -> float:
        line = HEADER.format("x.yaml") + (unit * length)[:length] + "\n"
        started = time.process_time()
        masked_diff(line)
        return time.process_time() - started

    assert seconds(200_000) < max(0.5, 8 * seconds(50_000))


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
