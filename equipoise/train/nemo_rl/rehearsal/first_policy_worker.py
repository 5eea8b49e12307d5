"""NeMo-RL's first DTensor worker on a CPU, for `policy.dtensor_cfg._v2: false`."""

# ruff: noqa: E402  Automodel is hidden before anything asks for it
import ray

from equipoise.train.nemo_rl.process import before_nemo_rl

before_nemo_rl()  # it would take Automodel's classes, which NeMo-RL's environment for it lacks

from equipoise.train.nemo_rl.rehearsal.policy_on_cpu import PolicyOnCpu  # isort: skip  it is first
from nemo_rl.models.policy.workers.dtensor_policy_worker import DTensorPolicyWorkerImpl


class FirstCpuPolicyWorkerImpl(PolicyOnCpu, DTensorPolicyWorkerImpl):
    """The one that has no LoRA."""


#: As in policy_worker.py.
FirstCpuPolicyWorker = ray.remote(FirstCpuPolicyWorkerImpl)
