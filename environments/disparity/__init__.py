"""Disparity vignettes: treatment decisions that do not change with the patient's race."""

from environments.disparity.decision import SCHEMA_TEXT
from environments.disparity.environment import DisparityEnvironment, DisparitySettings
from environments.disparity.sets import RACES

__all__ = ["RACES", "SCHEMA_TEXT", "DisparityEnvironment", "DisparitySettings"]
