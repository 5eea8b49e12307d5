"""The Ray of a rehearsal, which no other run joins."""

import ray

from equipoise.config.nemo_rl.assumptions import OWN_CLUSTER

#: NeMo-RL joins a Ray that it finds on the machine, but none with the mark of another's GPUs.
_MARK = f"{OWN_CLUSTER}rehearsal"


def start_ray(gpus: int) -> None:
    """Start a Ray of its own, for NeMo-RL would join another that runs here.

    Its GPUs and CPUs are numbers that workers are placed by; NeMo-RL asks for two CPUs per GPU.
    """
    ray.init(
        address="local",
        num_gpus=gpus,
        num_cpus=2 * gpus + 2,
        resources={_MARK: 1},
        include_dashboard=False,
        log_to_driver=True,
    )
