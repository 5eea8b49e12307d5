"""The least that a rehearsal trains and evaluates, as words of its command."""

SMALL = (
    "--num-samples=160",
    "equipoise.local_model.steps=150",
    "equipoise.evaluation.bootstrap_draws=200",
    "equipoise.evaluation.permutations=100",
    "env.fairness.reference_generations=2",
    "equipoise.max_failure_rate=1.0",
)
