"""Errors that the user can put right: what is wrong, and what to do about it."""

import difflib
from collections.abc import Iterable
from typing import ClassVar

from environments.base import CodedError


class EquipoiseError(CodedError):
    """An error that the command line shows without a traceback. `remedy` may be empty."""

    exit_code: ClassVar[int] = 1

    def __init__(self, code: str, message: str, remedy: str) -> None:
        super().__init__(code, message)
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n{self.remedy}" if self.remedy else self.message


class UsageError(EquipoiseError):
    """A request that cannot be done; nothing was started."""

    exit_code: ClassVar[int] = 2


def no_such_flag(word: str, flags: Iterable[str]) -> str:
    """Say that a flag is not there, and what to use."""
    name = word.partition("=")[0]
    if text := OPTIONS.get(normalized(word)):
        return f"there is no {name}: {text}"
    near = difflib.get_close_matches(name, list(flags), n=1)
    return f"there is no {word}" + (f", did you mean {near[0]}?" if near else "; see --help")


# --- Names from TRL, verl, lm-eval and similar programs, and what to use here in their place ------

#: What to use -> the names of options, keys or sections elsewhere, in lower case, with underscores.
_OPTIONS = {
    "use policy.model_name, or --model-name": (
        "model_name_or_path model_id model_path pretrained base_model"
    ),
    "use --model NAME, LABEL=FOLDER or NAME@URL": "model_args base_url",
    "use policy.precision": "bf16 fp16 dtype torch_dtype",
    "use --lora-rank, or policy.dtensor_cfg.lora_cfg": (
        "use_peft peft_config lora_r lora_alpha lora_dropout lora_target_modules target_modules"
    ),
    "use grpo.num_generations_per_prompt": (
        "num_generations group_size num_return_sequences rollout_n n_rollouts"
    ),
    "use policy.generation.max_new_tokens": (
        "max_completion_length max_response_length max_new_tokens max_gen_toks max_tokens"
    ),
    "use data.max_input_seq_length": "max_prompt_length",
    "use policy.max_total_sequence_length": "max_seq_length max_length max_model_len",
    "use policy.generation, such as policy.generation.temperature": (
        "temperature top_p top_k gen_kwargs generation_kwargs sampling_params"
    ),
    "use policy.optimizer.kwargs.lr, or --learning-rate": "lr learning_rate",
    "use policy.optimizer.kwargs.weight_decay": "weight_decay",
    "use policy.scheduler": "lr_scheduler_type warmup_ratio warmup_steps lr_warmup_steps",
    "use policy.max_grad_norm": "max_grad_norm grad_clip",
    "use grpo.max_num_steps, or --iterations": "max_steps steps num_steps total_training_steps",
    "use grpo.max_num_epochs; grpo.max_num_steps ends a run too": (
        "epochs num_epochs num_train_epochs total_epochs"
    ),
    "leave it out: each step makes one update; grpo.max_num_steps counts the steps": (
        "num_iterations ppo_epochs num_ppo_epochs mu"
    ),
    "use grpo.num_prompts_per_step, or --batch-size": "train_batch_size rollout_batch_size",
    "use policy.train_global_batch_size": "ppo_mini_batch_size mini_batch_size",
    "use policy.train_micro_batch_size": (
        "per_device_train_batch_size micro_batch_size ppo_micro_batch_size_per_gpu"
    ),
    "leave it out: policy.train_global_batch_size by train_micro_batch_size decides it": (
        "gradient_accumulation_steps"
    ),
    "use loss_fn.reference_policy_kl_penalty": "beta beta_kl kl_coef kl_loss_coef init_kl_coef",
    "use loss_fn.ratio_clip_min and loss_fn.ratio_clip_max": (
        "epsilon epsilon_high cliprange clip_ratio clip_ratio_low clip_ratio_high"
    ),
    "use loss_fn.token_level_loss": "loss_type loss_agg_mode",
    "use grpo.normalize_rewards": "scale_rewards norm_adv_by_std_in_grpo",
    "leave it out: GRPO is the only estimator": "adv_estimator critic",
    "write an environment: docs/own-task.md": (
        "reward_funcs reward_fn reward_function custom_reward_function reward_model"
    ),
    "use the weights in env.TASK": "reward_weights",
    "use equipoise.data.data_path; docs/own-data.md says how": (
        "dataset dataset_name dataset_path train_file train_files train_data"
    ),
    "use --engine nemo_rl, which generates with vLLM": "use_vllm vllm_mode",
    "use cluster.gpus_per_node and cluster.num_nodes": (
        "n_gpus_per_node nnodes num_gpus num_processes tensor_parallel_size"
    ),
    "use grpo.val_period": "eval_steps eval_strategy test_freq",
    "use checkpointing.save_period and checkpointing.keep_top_k": (
        "save_steps save_freq save_strategy save_total_limit"
    ),
    "leave it out: every step is logged": "logging_steps",
    "use logger.report_to": "report_to",
    "use --resume RUN": "resume_from_checkpoint resume_mode",
    "use --output-dir": "output_path save_dir default_local_dir",
    "use --few-shot N": "num_fewshot fewshot",
    "use equipoise.evaluation.batch_size": "per_device_eval_batch_size eval_batch_size",
    "leave it out: chat templates are always applied": "apply_chat_template",
    "leave it out: rollouts.jsonl has every reply": "log_samples log_completions",
    "name the task as the first word, as in `equipoise evaluate TASK`": "task tasks",
    "`hf upload REPOSITORY RUN/final_checkpoint` publishes a finished run": (
        "push_to_hub hub_model_id"
    ),
    "use grpo, policy.generation and policy.optimizer": "actor_rollout_ref actor rollout",
    "use grpo and loss_fn": "algorithm",
    "use grpo, checkpointing, logger and cluster": "trainer training_args grpo_config",
}
#: What to use -> verbs and scripts elsewhere.
_VERBS = {
    "use `equipoise train TASK`": (
        "grpo run fit finetune fine_tune train_grpo train_grpo_nemo train_rewriter_grpo "
        "manual_grpo_pubmedqa run_grpo_training"
    ),
    "use `equipoise train TASK --resume RUN`": "resume continue",
    "use `equipoise prepare TASK --examples FILE` and `trl sft`": "sft dpo",
    "use `equipoise evaluate TASK --model NAME`": (
        "eval test lm_eval lm_evaluate eval_grpo run_experiment benchmark simple_evaluate"
    ),
    "use `equipoise compare BEFORE AFTER`": "diff enhanced_analysis analyze analyse",
    "use `equipoise runs`": "ls list ps status jobs",
    "use `equipoise view RUN`": "report open show dashboard tensorboard",
    "use `equipoise merge-lora ADAPTER DEST`": "merge merge_adapters merge_adapter",
    "use `equipoise prepare TASK`": "data dataset generate_data preprocess",
    "use `equipoise doctor TASK`": "check validate env info debug",
    "use `transformers serve` or `vllm serve RUN/final_checkpoint`": (
        "serve vllm_serve chat infer inference generate predict"
    ),
    "use `hf upload REPOSITORY RUN/final_checkpoint`": "upload publish",
}


def _by_name(table: dict[str, str]) -> dict[str, str]:
    return {name: text for text, names in table.items() for name in names.split()}


OPTIONS, VERBS = _by_name(_OPTIONS), _by_name(_VERBS)


def normalized(word: str) -> str:
    """Return a flag, key or script as the tables have it: `--num-fewshot=3`, `eval_grpo.py`."""
    name = word.partition("=")[0].lower().lstrip("-").removesuffix(".py").removesuffix(".sh")
    return name.replace("-", "_")
