"""NeMo-RL's second DTensor worker on a CPU; NeMo-RL builds it by its full name."""

import ray

from equipoise.train.nemo_rl.rehearsal.policy_on_cpu import PolicyOnCpu  # isort: skip  it is first
from nemo_rl.models.policy.workers.dtensor_policy_worker_v2 import DTensorPolicyWorkerV2Impl


class CpuPolicyWorkerImpl(PolicyOnCpu, DTensorPolicyWorkerV2Impl):
    """The one that `policy.dtensor_cfg._v2` asks for."""


#: Ray sends a decorated class by value: this one's base is loaded by name, hence from this module.
CpuPolicyWorker = ray.remote(CpuPolicyWorkerImpl)
