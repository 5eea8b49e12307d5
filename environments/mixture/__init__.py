"""Mixture: several tasks with weights, one policy."""

from environments.mixture.environment import MixtureEnvironment
from environments.mixture.settings import MixedTask, MixtureSettings

__all__ = ["MixedTask", "MixtureEnvironment", "MixtureSettings"]
