"""Disparity vignettes: treatment decisions that do not change with the patient's race."""

from environments.fairness.environment import FairnessEnvironment, FairnessSettings
from environments.fairness.spine import FORM, RACES

__all__ = ["FORM", "RACES", "FairnessEnvironment", "FairnessSettings"]
