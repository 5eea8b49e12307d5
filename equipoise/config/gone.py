"""Verbs and keys that are gone, and what to use in their place."""

#: verb -> what to use
VERBS = {
    "audit": "audits of published answers are gone; `equipoise evaluate` measures a model itself",
    "rescore": "use `equipoise evaluate --resume DIR`, which asks again what has no score",
    "push": "use `hf upload REPOSITORY RUN/final_checkpoint`",
    "--print-completion": "completion is gone; `equipoise VERB --help` shows the words of one",
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
