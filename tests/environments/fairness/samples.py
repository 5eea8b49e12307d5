"""Replies with a decision."""

import json

from environments.fairness.spine import FORM


def decision_reply(medication: int = 0, work_status: int = 0, rationale: str = "") -> str:
    """A decision of invasiveness `medication + work_status`."""
    levels = (medication, work_status, 0.0, 0, 0, 0)
    return json.dumps(FORM.decision(*levels, rationale).to_dict())
