"""A user's mistake ends in a few lines and the right exit code, never in a traceback."""

import subprocess
import sys

import pytest
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from tests.command import ROOT, run_command


def recipe(*arguments, cwd=ROOT, name="grpo_fairness"):
    return run_command(name, *arguments, cwd=cwd)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("train fairness grpo.max_num_stepz=3", 2, "max_num_steps"),
        ("train fairness --config nemo_configs/large.yaml", 1, "NeMo-RL"),
        ("probe", 2, "the first word is the task, one of dharma, fairness"),
        ("probe fairness --engine=nemo_rl", 2, "with the local engine"),
    ],
)
def test_mistakes(arguments, code, said, tmp_path):
    verb, *words = arguments.split()
    own = [f"equipoise.output_dir={tmp_path}"] if words else []
    result = recipe(*words, *own, name=verb)
    assert result.returncode == code, result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_is_kept_of_a_run_that_could_not_start(tmp_path):
    model = f"--model-name={base_model(tmp_path / 'model')}"
    result = recipe(model, "--run-name=mine", f"--output-dir={tmp_path / 'results'}")
    assert result.returncode in (1, 2)
    assert "has no chat template" in result.stderr
    assert "Traceback" not in result.stderr
    assert list((tmp_path / "results").glob("*/*")) == []


def base_model(folder):
    """A model that was never tuned to chat: its tokenizer has no template."""
    words = {"[UNK]": 0, "<eos>": 1, "a": 2}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("scale", ["local", "large"])
def test_dry_run_writes_a_configuration_that_loads_again(scale, tmp_path):
    arguments = ["--config", f"nemo_configs/{scale}.yaml", "--output-dir", str(tmp_path)]
    result = recipe(*arguments, "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "rollouts per step" in result.stdout
    (written,) = (tmp_path / "fairness").glob("*.dry-run.yaml")
    again = recipe("--config", str(written), "--run-name", scale, "--dry-run")
    assert again.returncode == 0, again.stderr
    assert yaml.safe_load(written.read_text())["equipoise"]["task"] == "fairness"


def test_a_dotenv_file_is_read_before_the_hubs_client(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHON_DOTENV_DISABLED")
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    (tmp_path / ".env").write_text(f"HF_HOME={tmp_path / 'hub'}\n")
    script = (
        "from equipoise.__main__ import main\n"
        "try: main(['train', 'fairness', '--dry-run'])\n"
        "except SystemExit as ended: assert not ended.code\n"
        "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.stdout.splitlines()[-1] == str(tmp_path / "hub" / "hub"), result.stderr


def test_a_real_model_is_not_trained_by_a_stand_in_unsaid(tmp_path):
    name, said = "grpo_dharma", "answer key, which sees words"
    place = ("--dry-run", f"--output-dir={tmp_path}", f"equipoise.cache_dir={tmp_path / 'cache'}")
    assert said in recipe("--config=nemo_configs/small.yaml", *place, name=name).stdout
    assert said not in recipe("--config=nemo_configs/local.yaml", *place, name=name).stdout


def test_a_mistake_does_not_wait_for_heavy_libraries():
    heavy = "{'torch', 'transformers', 'matplotlib', 'scipy'}"
    found = f"sorted({heavy} & set(sys.modules)) or ''"
    code = f"import sys, equipoise.commands.start;sys.exit(str({found}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert not done.stderr.strip(), done.stderr
