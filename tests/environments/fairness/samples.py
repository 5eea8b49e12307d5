"""Replies with a decision."""

import json

import numpy as np

from environments.fairness.sets import MISSING
from environments.fairness.spine import FORM
from environments.fairness.words import Wording


def decision_reply(medication=0, work_status=0, rationale=""):
    """A decision of invasiveness `medication + work_status`."""
    levels = (medication, work_status, 0.0, 0, 0, 0)
    return json.dumps(FORM.decision(*levels, rationale).to_dict())


def same_words(points):
    """Of replies [S, R, G, P] which all say the same word."""
    length = np.where(points[..., 0] == MISSING, np.nan, 1.0)
    distance = np.where(np.isfinite(length).any(axis=(1, 2)), 0.0, np.nan)
    return Wording(length - 1, length - 1, length - 1, length, distance)
