"""The commands of docs/own-data.md for a model that never answers in the format."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, warm_start
from equipoise.files.nemo_rl import PATH_VARIABLE
from tests.command import ROOT, finished, with_our_code
from tests.contract.rehearsal import needs_checkout, needs_extra

TRL, NEMO_RL = (
    [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]
    for block in re.findall(
        r"```bash\n(.*?)```",
        (ROOT / "docs" / "own-data.md")
        .read_text("utf-8")
        .split("in the format\n")[1]
        .split("\n## ")[0],
        re.DOTALL,
    )
)


def run(words, folder, **variables):
    return finished(words, cwd=folder, env=with_our_code(**variables))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    examples = [Example(({"role": "user", "content": "Does rest help?"},), "Yes.")] * 16
    size = WarmStart(vocab_size=400, hidden_size=32, steps=1, batch_size=16, max_positions=2048)
    return str(warm_start(examples, size, tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the first command was run."""
    folder = tmp_path_factory.mktemp("work")
    assert TRL[0][:3] == ["uv", "run", "equipoise"]
    run([sys.executable, "-m", *TRL[0][2:]], folder)
    return folder


@pytest.mark.deep
def test_a_run_goes_on_from_what_trl_trains(folder, model):
    words = [model if word == "my/model" else word for word in TRL[1]]
    assert words[:4] == ["uv", "run", "trl", "sft"]
    little = ["--use_cpu", "--bf16", "false", "--max_steps", "2", "--report_to", "none"]
    run([str(Path(sys.executable).with_name("trl")), *words[3:], *little], folder)
    assert TRL[2][:2] == ["uv", "run"]
    smoke = ("--config", str(ROOT / "nemo_configs/smoke.yaml"), "--no-wandb", "--run-name=r")
    # Two steps of the tiny model do not give it the format.
    shapes = ("policy.max_total_sequence_length=2048", "equipoise.stop_without_signal=false")
    run([sys.executable, str(ROOT / TRL[2][2]), *TRL[2][3:], *smoke, *shapes], folder)
    assert (folder / "results/fairness/r/final_checkpoint").is_dir()


_NEMO_RL = """
import sys

sys.modules["triton"] = None  # it compiles for GPUs alone

from omegaconf import OmegaConf
from nemo_rl.algorithms.utils import get_tokenizer
from nemo_rl.data.datasets import load_response_dataset, update_single_dataset_config
from nemo_rl.utils.config import load_config, parse_hydra_overrides, register_omegaconf_resolvers

register_omegaconf_resolvers()
config = parse_hydra_overrides(load_config(sys.argv[1]), sys.argv[2:])
config = OmegaConf.to_container(config, resolve=True)
tokenizer = get_tokenizer(config["policy"]["tokenizer"])
train = config["data"]["train"]
update_single_dataset_config(train, config["data"]["default"])
data = load_response_dataset(train)
datum = data.processor(data.dataset[0], data.task_spec, tokenizer, 2048, 0)
roles = [message["role"] for message in datum["message_log"]]
text = tokenizer.decode([n for m in datum["message_log"] for n in m["token_ids"]])
assert text == tokenizer.apply_chat_template(data.dataset[0]["messages"], tokenize=False), text
print(len(data.dataset), roles[-1], datum["loss_multiplier"])
"""


@needs_checkout
@needs_extra()
@pytest.mark.deep
def test_nemo_rl_reads_the_examples(folder, model):
    (words,) = NEMO_RL
    assert words[:3] == ["uv", "run", "examples/run_sft.py"]
    checkout = Path(os.environ[PATH_VARIABLE])
    assert words[3] == "--config" and (checkout / words[2]).is_file()
    places = {"my/model": model, "$EXAMPLES": str(folder / "examples/fairness.jsonl")}
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    code = [sys.executable, "-c", _NEMO_RL, str(checkout / words[4]), *words[5:]]
    said = run(code, folder, PYTHONPATH=str(checkout))
    assert said.splitlines()[-1] == "2000 assistant 1.0"
