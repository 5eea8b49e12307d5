"""How NeMo-RL lays a configuration out over its GPUs."""

from dataclasses import dataclass

from equipoise.config.schema import Config


@dataclass(frozen=True, slots=True)
class Layout:
    """GPUs and how training and generation split the model and the batch over them.

    The sizes need not fit together: `equipoise.config.nemo_rl.rules` says where they do not.
    """

    gpus: int
    training_gpus: int
    generation_gpus: int
    tensor: int
    pipeline: int
    context: int
    vllm_tensor: int
    vllm_pipeline: int
    megatron: bool

    @property
    def model_parallel(self) -> int:
        """GPUs that one copy of the model trains on."""
        return self.tensor * self.pipeline * self.context

    @property
    def data_parallel(self) -> int:
        """Copies of the model that share a batch; at least 1."""
        return max(1, self.training_gpus // self.model_parallel)

    @property
    def vllm_gpus(self) -> int:
        """GPUs that one copy of the model generates on."""
        return self.vllm_tensor * self.vllm_pipeline

    @property
    def replicas(self) -> int:
        """Copies of the model that generate; at least 1."""
        return max(1, self.generation_gpus // self.vllm_gpus)


def layout_of(config: Config) -> Layout:
    """The layout that a configuration asks for."""
    policy, generation = config.policy, config.policy.generation
    megatron, dtensor = policy.megatron_cfg, policy.dtensor_cfg
    gpus = config.cluster.gpus
    generation_gpus = 0 if generation.colocated.enabled else _generation_gpus(config)
    on_megatron = megatron.enabled
    return Layout(
        gpus=gpus,
        training_gpus=gpus - generation_gpus,
        generation_gpus=generation_gpus or gpus,
        tensor=(
            megatron.tensor_model_parallel_size if on_megatron else dtensor.tensor_parallel_size
        ),
        pipeline=megatron.pipeline_model_parallel_size if on_megatron else 1,
        context=megatron.context_parallel_size if on_megatron else dtensor.context_parallel_size,
        vllm_tensor=generation.vllm_cfg.tensor_parallel_size,
        vllm_pipeline=generation.vllm_cfg.pipeline_parallel_size,
        megatron=on_megatron,
    )


def _generation_gpus(config: Config) -> int:
    """Count the GPUs of generation when it shares none with training.

    A part of one node, or whole nodes of several.
    """
    resources, cluster = config.policy.generation.colocated.resources, config.cluster
    if cluster.num_nodes == 1:
        return resources.gpus_per_node or cluster.gpus_per_node
    return cluster.gpus_per_node * (resources.num_nodes or 1)
