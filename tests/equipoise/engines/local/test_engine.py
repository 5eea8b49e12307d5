"""What the local engine says of itself."""

from dataclasses import replace

import pytest
import torch

from equipoise.engines.local.engine import say_precision
from equipoise.stages.job import Job


@pytest.mark.parametrize(
    ("precision", "device", "said"),
    [("bfloat16", "cpu", True), ("bfloat16", "cuda", False), ("float32", "cpu", False)],
)
def test_a_precision_that_is_not_used_is_said(job: Job, precision, device, said, capsys) -> None:
    policy = job.config.policy.model_copy(update={"precision": precision})
    config = job.config.model_copy(update={"policy": policy})
    say_precision(replace(job, loaded=replace(job.loaded, config=config)), torch.device(device))
    assert ("float32" in capsys.readouterr().out) is said
