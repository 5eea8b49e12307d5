"""The cold start: a model learns a task's form of reply by imitation, before GRPO."""
