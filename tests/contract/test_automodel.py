"""Automodel, on which NeMo-RL's training workers are built, applies our LoRA settings.

The release is the one that is nearest to what NeMo-RL pins; a rehearsal runs on it, too.
"""

import sys

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, LlamaForCausalLM, Qwen2ForCausalLM

from equipoise.config import Options, load_config
from equipoise.config.compose import CONFIG_FOLDER
from equipoise.train.local import with_adapter
from tests.equipoise.checkpoints.samples import SIZES

pytest.importorskip("nemo_automodel", reason="nemo-automodel is in the group dev")
MODELS = (Qwen2ForCausalLM, LlamaForCausalLM)


@pytest.fixture(autouse=True, scope="module")
def without_triton():
    """Its kernels compile for GPUs alone, and not with every version; workers here hide it, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton", None)
        if sys.modules.get("nemo_automodel", "") is None:
            patch.delitem(sys.modules, "nemo_automodel")  # NeMo-RL's driver does without it
        yield


def lora(**changes):
    config = load_config("fairness", Options((CONFIG_FOLDER / "small.yaml",))).config
    settings = config.policy.dtensor_cfg.lora_cfg
    return settings.model_copy(update={"use_triton": False, **changes})


def tiny(model):
    torch.manual_seed(0)
    built = model(model.config_class(**SIZES, tie_word_embeddings=True))
    built.config.architectures = [model.__name__]
    return built


def peft_config(settings):
    from nemo_automodel.components._peft.lora import PeftConfig

    return PeftConfig.from_dict(settings.model_dump(by_alias=True, exclude_none=True))


def adapted_by_automodel(model, settings):
    from nemo_automodel.components._peft.lora import apply_lora_to_linear_modules

    built = tiny(model)
    apply_lora_to_linear_modules(built, peft_config(settings))
    return built


def adapted_layers(model):
    names = {name for name, module in model.named_modules() if hasattr(module, "lora_A")}
    return {name.removeprefix("base_model.model.") for name in names}


@pytest.mark.parametrize("model", MODELS)
class TestTheShippedAdapter:
    def test_has_the_layers_of_the_local_engine(self, model):
        theirs = adapted_layers(adapted_by_automodel(model, lora()))
        ours = adapted_layers(with_adapter(tiny(model), lora()))
        assert theirs == ours
        assert len(theirs) == 7 * SIZES["num_hidden_layers"]

    def test_leaves_the_output_layer_alone(self, model):
        assert "lm_head" not in adapted_layers(adapted_by_automodel(model, lora()))
        every = lora(match_all_linear=True, target_modules=(), exclude_modules=())
        assert "lm_head" in adapted_layers(adapted_by_automodel(model, every))


@pytest.mark.parametrize("model", MODELS)
class TestASavedAdapter:
    @pytest.fixture
    def trained(self, model):
        """With an adapter whose B is no longer zero."""
        built = adapted_by_automodel(model, lora())
        for name, parameter in built.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        return built

    @pytest.fixture(autouse=True)
    def one_process(self, tmp_path):
        """Adapters are read by the first rank and sent to the others."""
        store = f"file://{tmp_path / 'store'}"
        torch.distributed.init_process_group("gloo", store, rank=0, world_size=1)
        yield
        torch.distributed.destroy_process_group()

    @pytest.fixture
    def checkpointer(self, tmp_path):
        from nemo_automodel.components.checkpoint.checkpointing import (
            Checkpointer,
            CheckpointingConfig,
        )

        settings = CheckpointingConfig(
            enabled=True,
            checkpoint_dir=str(tmp_path),
            model_save_format="safetensors",
            model_cache_dir="",
            model_repo_id="tiny",
            save_consolidated=False,
            is_peft=True,
        )
        return Checkpointer(settings, dp_rank=0, tp_rank=0, pp_rank=0)

    @pytest.fixture
    def saved(self, trained, checkpointer, tmp_path):
        checkpointer.save_model(trained, str(tmp_path), peft_config=peft_config(lora()))
        return tmp_path / "model"

    def test_comes_back(self, model, trained, checkpointer, saved):
        other = adapted_by_automodel(model, lora())
        checkpointer.load_model(other, str(saved))
        for name, parameter in trained.named_parameters():
            assert torch.equal(other.get_parameter(name), parameter), name

    def test_is_the_same_model_in_peft_and_merged(self, model, trained, saved, tmp_path):
        tiny(model).save_pretrained(tmp_path / "base")
        ids = torch.arange(8)[None]
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        loaded = PeftModel.from_pretrained(base, saved)
        assert torch.allclose(loaded(ids).logits, trained(ids).logits, atol=1e-5)
        merged = loaded.merge_and_unload()
        assert torch.allclose(merged(ids).logits, trained(ids).logits, atol=1e-5)
