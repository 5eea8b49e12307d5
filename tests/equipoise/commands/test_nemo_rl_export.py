"""A run on NeMo-RL's DTensor workers ends with a model that loads, an adapter, or nothing."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from peft import PeftModel
from transformers import AutoModelForCausalLM

from equipoise.commands import stages
from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER, Setting
from equipoise.files.console import Reporter, printing_notes
from equipoise.run.directory import RunDirectory
from equipoise.run.job import Display
from equipoise.run.ledger import Provenance
from equipoise.run.seals import Manifest, damage_of
from tests.equipoise.checkpoints.conftest import model  # noqa: F401  the tiny Llama
from tests.equipoise.checkpoints.samples import same, save_adapter, weights_of


def job(folder, base, form):
    """The run of all that `export` looks at."""
    run = RunDirectory(folder)
    setting = Setting("", "equipoise.export", form)
    loaded = load_config("fairness", Options((CONFIG_FOLDER / "small.yaml",), (setting,)))
    run.ledger.create(Provenance())
    return SimpleNamespace(config=loaded.config, run=run, model_name=str(base), display=Display())


@pytest.fixture
def step(tmp_path, model):  # noqa: F811
    """An empty step of NeMo-RL's; a model is saved into its `policy/weights`."""
    step = tmp_path / "run" / "checkpoints" / "step_4"
    (step / "policy" / "tokenizer").mkdir(parents=True)
    (step / "policy" / "tokenizer" / "tokenizer.json").write_text("{}")
    (step / "training_info.json").write_text("{}")
    (step / "config.yaml").write_text(f"policy:\n  model_name: {model}\n")
    return step


@pytest.fixture(autouse=True)
def installation(monkeypatch):
    monkeypatch.setattr(stages, "find_installation", lambda: SimpleNamespace(root=Path("NeMo-RL")))


def exported(step, base, form):
    run = step.parents[1]
    stages.export(job(run, base, form))
    return run / "final_checkpoint"


@pytest.mark.parametrize("form", ["hf", "adapter"])
def test_all_weights_are_a_model_in_either_form(form, step, model):  # noqa: F811
    weights = {name: 2 * tensor for name, tensor in weights_of(model).items()}
    dcp.save(weights, checkpoint_id=step / "policy" / "weights" / "model")
    final = exported(step, model, form)
    assert same(weights_of(final), weights)
    assert same(dict(AutoModelForCausalLM.from_pretrained(final).state_dict()), weights)
    assert (final / "tokenizer.json").exists()
    run = RunDirectory(step.parents[1])
    assert "final_checkpoint" in Manifest.read(run.root).parts()
    assert not damage_of(run, "final_checkpoint")


def test_a_lora_is_an_adapter_or_merged(step, model):  # noqa: F811
    wanted = save_adapter(model, step / "policy" / "weights" / "model")
    final = exported(step, model, "adapter")
    base = AutoModelForCausalLM.from_pretrained(model)
    own = PeftModel.from_pretrained(base, final).merge_and_unload().state_dict()
    assert all(torch.equal(own[name], wanted[name]) for name in wanted)
    final.rename(step.parents[1] / "adapter")
    own = weights_of(exported(step, model, "hf"))
    assert all(torch.allclose(own[n].float(), wanted[n].float(), atol=4e-3) for n in own)


def test_nothing_is_made_where_nothing_is_wanted(step, model):  # noqa: F811
    dcp.save(weights_of(model), checkpoint_id=step / "policy" / "weights" / "model")
    assert not exported(step, model, "none").exists()


def test_what_cannot_be_made_is_said_and_ends_no_run(step, model, capsys):  # noqa: F811
    weights = step / "policy" / "weights" / "model"
    dcp.save(weights_of(model), checkpoint_id=weights)
    next(weights.glob("*.distcp")).unlink()
    with printing_notes(Reporter()):
        assert not exported(step, model, "hf").exists()
    told = "".join(capsys.readouterr())
    assert "final_checkpoint was not made" in told.replace("\n", " ")
    assert "examples/converters" in told and "step_4" in told
