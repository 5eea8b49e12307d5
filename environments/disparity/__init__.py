"""Disparity vignettes: treatment decisions that do not change with the patient's race."""

from environments.disparity.environment import DisparityEnvironment, DisparitySettings
from environments.disparity.spine import FORM, RACES

__all__ = ["FORM", "RACES", "DisparityEnvironment", "DisparitySettings"]
