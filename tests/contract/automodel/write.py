"""Write checkpoints of a tiny model by Automodel's own Checkpointer, from two to four processes.

    python tests/contract/automodel/write.py FOLDER [CHECKOUT]

With a checkout of NeMo-RL its own functions write whole `step_N`s, too. Processes are forked: what
they import takes half a minute, once.
"""

# ruff: noqa: E402  triton, which compiles for GPUs alone, is hidden from what is imported
import sys

sys.modules["triton"] = None

import logging
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from nemo_automodel.components._peft.lora import PeftConfig, apply_lora_to_linear_modules
from nemo_automodel.components.checkpoint.checkpointing import (
    Checkpointer,
    CheckpointingConfig,
    _should_write_hf_metadata,
)
from pydantic import BaseModel
from tokenizers import Tokenizer, models
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

LORA = {"target_modules": ["*_proj"], "dim": 4, "alpha": 8, "use_triton": False}
TENSOR_PARALLEL = {
    "model.layers.*.self_attn.q_proj": ColwiseParallel(),
    "model.layers.*.self_attn.k_proj": ColwiseParallel(),
    "model.layers.*.self_attn.v_proj": ColwiseParallel(),
    "model.layers.*.self_attn.o_proj": RowwiseParallel(),
    "model.layers.*.mlp.gate_proj": ColwiseParallel(),
    "model.layers.*.mlp.up_proj": ColwiseParallel(),
    "model.layers.*.mlp.down_proj": RowwiseParallel(),
}


def save_base(folder):
    """Neither its vocabulary nor its inner size can be divided by two, three or four."""
    torch.manual_seed(0)
    shape = Qwen2Config(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=46,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(shape).to(torch.bfloat16)
    for parameter in model.parameters():  # norms and biases, too, so that no part is like another
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    vocabulary = {f"w{number}": number for number in range(shape.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def base(folder):
    return AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.bfloat16)


def trained(folder):
    """The base with every weight doubled, so that what is converted is not the base itself."""
    model = base(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


def sharded(model, mesh):
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def save(model, folder, form, consolidated=False, peft=None):
    settings = CheckpointingConfig(
        enabled=True,
        checkpoint_dir=str(folder.parent),
        model_save_format=form,
        model_cache_dir="",
        model_repo_id="",
        save_consolidated=consolidated,
        is_peft=peft is not None,
    )
    writer = Checkpointer(settings, dp_rank=dist.get_rank(), tp_rank=0, pp_rank=0)
    writer.save_model(model, str(folder), peft_config=peft)
    dist.barrier()


def every_form(folder):
    model = sharded(trained(folder), init_device_mesh("cpu", (2,)))
    save(model, folder / "torch_save", "torch_save")
    save(model, folder / "sharded", "safetensors")
    save(model, folder / "consolidated", "safetensors", consolidated=True)
    adapted, peft = with_adapter(folder)
    save(adapted, folder / "adapter", "safetensors", peft=peft)


def with_adapter(folder):
    model = base(folder)
    peft = PeftConfig.from_dict(LORA)
    apply_lora_to_linear_modules(model, peft)
    torch.manual_seed(1)  # every process draws the same B, which is zero until it is trained
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return sharded(model, init_device_mesh("cpu", (2,))), peft


def three_ranks(folder):
    model = sharded(trained(folder), init_device_mesh("cpu", (3,)))
    save(model, folder / "three_sharded", "safetensors")
    save(model, folder / "three_torch_save", "torch_save")


def grid(folder):
    """Two ranks of tensor parallelism by two of FSDP: some parts are cut in both dimensions."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(trained(folder), mesh["tp"], TENSOR_PARALLEL)
    sharded(model, mesh["dp"])
    save(model, folder / "grid_sharded", "safetensors")
    save(model, folder / "grid_torch_save", "torch_save")


def steps(folder):
    """Write the checkpoint of a step as NeMo-RL's DTensor worker does, by NeMo-RL's functions."""
    from nemo_rl.models.automodel.checkpoint import AutomodelCheckpointManager

    # A method in the Automodel that NeMo-RL pins has become a function.
    Checkpointer._should_write_hf_metadata = lambda self: _should_write_hf_metadata(self.config)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    model = sharded(trained(folder), mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # has a state to be saved beside the weights, and leaves these as they are

    def write_second(policy, saved=model, form="safetensors", peft=None):
        manager = AutomodelCheckpointManager(mesh["dp"], mesh["tp"])
        manager.init_checkpointer()
        manager.save_checkpoint(
            saved,
            f"{policy}/weights",
            None if peft else optimizer,
            f"{policy}/optimizer",
            None,
            tokenizer,
            f"{policy}/tokenizer",
            checkpointing_cfg={"model_save_format": form, "save_consolidated": False},
            lora_enabled=peft is not None,
            peft_config=peft,
        )

    step(folder / "second", write_second)
    step(folder / "second_torch_save", partial(write_second, form="torch_save"))
    adapted, peft = with_adapter(folder)
    step(folder / "lora", partial(write_second, saved=adapted, peft=peft))


def step(run, write):
    """A `step_1` from the temporary folder to the renamed one, as NeMo-RL's loop makes it."""
    from nemo_rl.utils.checkpoint import CheckpointManager

    class MasterConfig(BaseModel):
        policy: dict[str, str] = {"model_name": str(run.parent / "base")}

    settings = {"metric_name": None, "higher_is_better": True, "save_period": 1}
    settings |= {"checkpoint_dir": str(run), "keep_top_k": None, "save_optimizer": True}
    manager = CheckpointManager(settings)
    temporary = [None]
    if dist.get_rank() == 0:
        temporary = [str(manager.init_tmp_checkpoint(1, {"step": 1}, MasterConfig()))]
    dist.broadcast_object_list(temporary)
    write(f"{temporary[0]}/policy")
    dist.barrier()
    if dist.get_rank() == 0:
        manager.finalize_checkpoint(temporary[0])


def rank(number, write, ranks, folder):
    logging.disable(logging.WARNING)
    meeting = f"file://{folder}/.meeting-{write.__name__}"
    dist.init_process_group("gloo", init_method=meeting, rank=number, world_size=ranks)
    write(folder)
    dist.barrier()
    dist.destroy_process_group()


def main(folder, checkout=""):
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    save_base(folder / "base")
    writes = {every_form: 2, three_ranks: 3, grid: 4} | ({steps: 2} if checkout else {})
    for write, ranks in writes.items():
        mp.start_processes(rank, (write, ranks, folder), nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
