"""Environments, which give reward: a package for each task, and their contract in `base`."""

#: Environments by the names under which run directories of before know them.
FORMER_NAMES = {
    "environments.disparity.DisparityEnvironment": "environments.fairness.FairnessEnvironment",
    "environments.rag_accuracy.RagEnvironment": "environments.rag.RagEnvironment",
}
