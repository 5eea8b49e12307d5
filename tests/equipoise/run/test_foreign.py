"""Models of others: no code of theirs runs, whatever their files hold is one clear error."""

import ast
import builtins
import re
import shutil
from pathlib import Path

import pytest
import torch

from data_prep.contract import WarmStart
from data_prep.tiny_model import Example, warm_start
from environments.base import PromptRecord
from environments.contract import EncoderSettings
from equipoise.config import load_config
from equipoise.config.words import parse_flags
from equipoise.files.errors import EquipoiseError
from equipoise.files.pretrained import check_model, load_tokenizer
from equipoise.run.encoder import HuggingFaceEncoder
from equipoise.run.model import load_model
from equipoise.run.policy import load_trained
from equipoise.run.sampling import LoadedModel
from equipoise.train.nemo_rl.engine import open_tokenizer
from tests.equipoise.checkpoints.samples import change_json
from tests.refusals import refusal

ROOT = Path(__file__).resolve().parents[3]
RECORD = PromptRecord("p1", "toy", ({"role": "user", "content": "Why!"},), "p1", "train")
LOADS = re.compile(r"Auto\w+\.from_(pretrained|hf_pretrained|config)")
CPU = {"dtype": torch.float32, "device": torch.device("cpu")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    settings = WarmStart(hidden_size=32, layers=1, heads=2, steps=1, batch_size=2)
    examples = [Example(RECORD.messages, "No.")] * 2
    return warm_start(examples, settings, tmp_path_factory.mktemp("models"))


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "model")


@pytest.fixture
def own_code(folder, tmp_path, monkeypatch):
    """A model of a family of its own; whoever asks whether to run the code is told yes."""
    names = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM"), "own.Own")
    change_json(folder / "config.json", model_type="own", auto_map=names)
    tokenizer = {"AutoTokenizer": ["own.Own", None]}
    change_json(folder / "tokenizer_config.json", auto_map=tokenizer, tokenizer_class="Own")
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit\n")
    monkeypatch.setattr(builtins, "input", lambda *_: "y")
    return folder


def test_code_of_others_is_not_run_and_nobody_is_asked(made, own_code, tmp_path):
    name = str(own_code)
    base = LoadedModel(*load_model(str(made), str(made), **CPU), "base")
    for load in (
        lambda: check_model(name),
        lambda: load_model(name, name, **CPU),
        lambda: load_model(name, str(made), **CPU),
    ):
        with refusal("model.custom-code"):
            load()
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_trained(base, own_code, torch.device("cpu"))
    with pytest.raises(ValueError, match="trust_remote_code"):
        HuggingFaceEncoder(EncoderSettings(query_model=name, passage_model=name))
    assert not (tmp_path / "ran").exists()


def test_nemo_rl_which_runs_it_unasked_does_not_get_it(folder):
    """A class of transformers' own is taken here; NeMo-RL's workers would take the other."""
    words = (f"policy.model_name={folder}", "grpo.val_period=0")
    config = load_config("fairness", parse_flags("x", words)).config
    open_tokenizer(config, [RECORD], str(folder))
    for file in ("tokenizer_config.json", "config.json"):
        change_json(folder / file, auto_map={"AutoConfig": "own.Own"})
        load_model(str(folder), str(folder), **CPU)
        with refusal("model.auto-map", file):
            open_tokenizer(config, [RECORD], str(folder))


def test_every_automatic_class_is_told_not_to_run_code():
    folders = [ROOT / name for name in ("equipoise", "data_prep", "recipes")]
    calls, trusting = 0, []
    for path in [path for folder in folders for path in folder.rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if LOADS.fullmatch(called):
                calls += 1
                words = {word.arg: ast.unparse(word.value) for word in node.keywords}
                if words.get("trust_remote_code") != "False":
                    trusting.append(f"{path}:{node.lineno}")
    assert calls > 10
    assert not trusting


@pytest.mark.parametrize("text", ["[]", "null", "{", "[" * 100_000])
def test_a_configuration_that_is_no_object(text, folder):
    (folder / "config.json").write_text(text)
    with pytest.raises(EquipoiseError, match=r"config\.json") as error:
        check_model(str(folder))
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_attention_heads": 0}, "model.unloadable | by zero"),
        ({"num_hidden_layers": "many"}, "model.unloadable | num_hidden_layers"),
        (
            {"num_hidden_layers": 10_000_000},
            "model.implausible-size | num_hidden_layers 10,000,000",
        ),
        ({"decoder_layers": 300_000}, "model.implausible-size | decoder_layers 300,000"),
        (
            {"num_hidden_layers": 900, "num_local_experts": 900},
            "model.implausible-size | 900 layers of 900 experts",
        ),
        ({"rope_parameters": [1]}, "model.unloadable | rope_parameters"),
        ({"dtype": "float99"}, "model.unloadable | float99"),
        ({"_attn_implementation": "org/kernel"}, "model.foreign-code | org/kernel"),
    ],
)
def test_a_configuration_that_is_no_model_s(changes, told, folder):
    change_json(folder / "config.json", **changes)
    with refusal(told) as error:
        load_model(str(folder), str(folder), **CPU)
    assert "\n" not in error.value.message


def test_no_link_of_a_folder_reaches_a_prompt(folder):
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / "chat_template.jinja").symlink_to("/proc/self/environ")
    with refusal("model.link-outside"):
        load_tokenizer(str(folder), str(folder))
