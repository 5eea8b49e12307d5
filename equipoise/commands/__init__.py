"""Verbs that join what folders below do: a run of training, and the gate after it."""
