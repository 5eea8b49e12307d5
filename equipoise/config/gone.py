"""Words of an older Equipoise and of other programs, and what to use in their place."""

import difflib
from collections.abc import Iterable

#: verb -> what to use
VERBS = {
    "audit": "audits of published answers are gone; `equipoise evaluate` measures a model itself",
    "rescore": "use `equipoise evaluate --resume DIR`, which asks again what has no score",
    "push": "use `hf upload REPOSITORY RUN/final_checkpoint`",
    "--print-completion": "completion is gone; `equipoise VERB --help` shows the words of one",
    "merge-lora": "use `equipoise convert ADAPTER DEST`, which merges an adapter",
    "cold-start": "use `equipoise prepare TASK --examples FILE` and `trl sft`",
}
#: key, or the section it lay in -> what to use
KEYS: dict[str, str] = {
    "equipoise.cold_start": "use `equipoise prepare TASK --examples FILE` and `trl sft`",
    "equipoise.first_stage": "leave it out: GRPO alone gets there, with grpo.max_num_steps=160",
    "env.fairness.counterfactual_weight": "leave it out: the race-blind reference alone is enough",
    "env.fairness.reference_weight": "write env.fairness.fairness_weight",
    "equipoise.tracking": "leave it out: every reply is in the run's report.html",
    "env.dharma.answer_key": "prompts without an answer key need a model under env.dharma.judge",
    "equipoise.gpu": "hours are not estimated: `seconds` in training_history.jsonl has them",
    "equipoise.evaluation.also": "use `equipoise gate RUN/baseline RUN/final` after the run",
    "equipoise.data.fields": "name the rows' keys question, context and ground_truth",
    "equipoise.environment_actor": "leave it out: the reward runs on the driver's node",
    "scale": "leave it out: name the scale with a --config of its own, before yours",
    "equipoise.data.labels": "write yes, no or maybe as each row's ground_truth",
    "equipoise.data.known_share": "NeMo-RL's grpo.use_dynamic_sampling leaves out what ties",
    "env.dharma.judge.endpoint.send_schema": "leave it out: a refused schema is not sent again",
    "env.rag.generator.endpoint.send_schema": "leave it out: a refused schema is not sent again",
    "equipoise.local_model.recited_share": "leave it out: no reply recites an answer",
    "equipoise.data.five_options": "take MedQA's files of four options",
}


def replacement(key: str) -> str:
    """Say what to use for a key that is gone, or lies in such a section; empty for others."""
    return next((text for k, text in KEYS.items() if f"{key}.".startswith(f"{k}.")), "")


# --- Names from TRL, verl, lm-eval and similar programs, and what to use here in their place ------

#: What to use -> the names of options, keys or sections elsewhere, in lower case, with underscores.
_OPTIONS = {
    "use policy.model_name, or --model-name": (
        "model_name_or_path model_id model_path pretrained base_model"
    ),
    "use --model NAME, LABEL=FOLDER or NAME@URL": "model_args base_url",
    "leave it out: evaluation warns where the answer key judges": "stand_in",
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
    "use `equipoise convert ADAPTER DEST`": "merge merge_adapters merge_adapter",
    "use `equipoise prepare TASK`": "data dataset generate_data preprocess",
    "use `equipoise doctor TASK`": "check validate env info debug",
    "use `transformers serve` or `vllm serve RUN/final_checkpoint`": (
        "serve vllm_serve chat infer inference generate predict"
    ),
    "use `hf upload REPOSITORY RUN/final_checkpoint`": "upload publish",
}


def _by_name(table: dict[str, str]) -> dict[str, str]:
    return {name: text for text, names in table.items() for name in names.split()}


FOREIGN_OPTIONS, FOREIGN_VERBS = _by_name(_OPTIONS), _by_name(_VERBS)


def normalized(word: str) -> str:
    """Return a flag, key or script as the tables have it: `--num-fewshot=3`, `eval_grpo.py`."""
    name = word.partition("=")[0].lower().lstrip("-").removesuffix(".py").removesuffix(".sh")
    return name.replace("-", "_")


def no_such_flag(word: str, flags: Iterable[str]) -> str:
    """Say that a flag is not there, and what to use."""
    name = word.partition("=")[0]
    if text := FOREIGN_OPTIONS.get(normalized(word)):
        return f"there is no {name}: {text}"
    near = difflib.get_close_matches(name, list(flags), n=1)
    return f"there is no {word}" + (f", did you mean {near[0]}?" if near else "; see --help")
