"""Dharma: staying within healthcare, rated by a judge and decided by a Rego policy."""

from environments.dharma.environment import DharmaEnvironment, DharmaSettings

__all__ = ["DharmaEnvironment", "DharmaSettings"]
