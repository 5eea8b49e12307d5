"""From our configuration to the YAML that NeMo-RL's loader reads.

The file names the installed version's `grpo_math_1B.yaml` as its `defaults`, so that NeMo-RL's
loader fills in what is not set and the version decides its own defaults. Sections are merged over
that base key by key and lists replace each other; the sections `data` and `env`, where keys of the
base would reach our dataset and start its math environment, replace it whole.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

from environments.base import TRAIN_SPLIT, VALIDATION_SPLIT
from equipoise.config import LoadedConfig
from equipoise.config.schema import SchedulerEntry
from equipoise.models.pretrained import tokenizer_of
from equipoise.run.directory import RunDirectory

DATASET = "equipoise.train.nemo_rl.dataset.PromptDataset"
#: The word of NeMo-RL's loader for a top-level section that replaces the base's.
_REPLACES_BASE = {"_override_": True}
#: NeMo-RL takes no empty list and no null: a constant learning rate is a scheduler too.
_CONSTANT: list[SchedulerEntry] = [
    {"name": "torch.optim.lr_scheduler.ConstantLR", "kwargs": {"factor": 1.0, "total_iters": 1}}
]


def nemo_rl_config(
    loaded: LoadedConfig,
    base: Path,
    run: RunDirectory,
    model_name: str,
    *,
    validates: bool = True,
    steps: int | None = None,
) -> dict[str, Any]:
    """Return the configuration for NeMo-RL's loader, as plain values.

    `base` is the version's own configuration, `model_name` the name or the folder of the model, for
    which `policy.model_name` may have a word. `validates` says whether there are prompts to
    validate on, `steps` how many there are prompts for. Paths become absolute, for NeMo-RL's
    workers have their own working directories.
    """
    config, grpo, env = loaded.config, loaded.config.grpo, loaded.environment_class.name
    resolved = deepcopy({k: value for k, value in loaded.resolved.items() if k != "equipoise"})
    # NeMo-RL counts rows, and a validation prompt has as many as a prompt has generations.
    rows, wandb = grpo.num_generations_per_prompt, config.logger.wandb
    changes = {
        "grpo": {
            "max_num_epochs": 1,  # over our schedule
            "max_num_steps": steps or grpo.max_num_steps,  # asynchronous GRPO sees no end of data
            "val_at_start": False,  # the baseline takes its place
            "val_at_end": validates,
            "val_batch_size": (grpo.val_batch_size or 256) * rows,
            "max_val_samples": (grpo.max_val_samples or 2**31 - 1) * rows,  # all that there are
        },
        "policy": _policy(loaded, model_name),
        "checkpointing": {"checkpoint_dir": str(run.checkpoints.resolve())},
        "logger": {
            "log_dir": str(run.root.resolve() / "logs"),
            "wandb": wandb.model_dump(mode="json", exclude_none=True, exclude_unset=True)
            | {"name": wandb.name or run.root.name},
        },
    }
    return {
        "defaults": str(base.resolve()),
        **resolved,
        **{section: resolved[section] | keys for section, keys in changes.items()},
        "data": _data(loaded, run, validates=validates),
        "env": {**_REPLACES_BASE, env: loaded.env_settings.model_dump(mode="json")},
    }


def _policy(loaded: LoadedConfig, model_name: str) -> dict[str, Any]:
    policy = loaded.config.policy
    tokenizer = policy.tokenizer.model_dump(mode="json", by_alias=True, exclude_unset=True)
    scheduler: list[dict[str, Any]] = [dict(entry) for entry in policy.scheduler or _CONSTANT]
    # NeMo-RL's workers read the milestones of every chain, that of a single scheduler too.
    if not any("milestones" in entry for entry in scheduler):
        scheduler.append({"milestones": []})
    changed = {
        "model_name": model_name,
        "tokenizer": tokenizer | {"name": tokenizer_of(policy, model_name)},
        "scheduler": scheduler,
    }
    if start := policy.pretrained_checkpoint:
        path = str(Path(start.path).expanduser().resolve())
        changed["pretrained_checkpoint"] = {"path": path, "format": start.format}
    return changed


def _data(loaded: LoadedConfig, run: RunDirectory, *, validates: bool) -> dict[str, Any]:
    """Return the whole section; every key that NeMo-RL reads is named: none comes from its base."""
    config, grpo = loaded.config, loaded.config.grpo
    room = config.policy.max_total_sequence_length - config.policy.generation.max_new_tokens
    entry = {
        "dataset_name": DATASET,
        "env_name": loaded.environment_class.name,
        "prompts": str(run.prompts.resolve()),
    }
    training = {
        "split": TRAIN_SPLIT,
        "prompts_per_step": grpo.num_prompts_per_step,
        "max_steps": grpo.max_num_steps,
        "max_epochs": grpo.max_num_epochs,
        "seed": grpo.seed,
        "spare": grpo.is_asynchronous,
    }
    validation = {"split": VALIDATION_SPLIT, "generations": grpo.num_generations_per_prompt}
    return {
        **_REPLACES_BASE,
        "max_input_seq_length": config.data.max_input_seq_length or room,
        "shuffle": False,
        "num_workers": config.data.num_workers,
        "use_multiple_dataloader": False,
        "train": entry | training,
        "validation": entry | validation if validates else None,
        "default": {"prompt_file": None, "system_prompt_file": None},
    }
