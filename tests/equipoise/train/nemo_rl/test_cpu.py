"""The CPU takes the tensors and modules that a worker of NeMo-RL moves to a GPU."""

import torch

from equipoise.train.nemo_rl.rehearsal.cpu import CudaIsCpu


def test_tensors_and_modules_go_to_the_cpu():
    with CudaIsCpu():
        tensors = [
            torch.ones(2, device="cuda"),
            torch.ones(2, device=torch.device("cuda", 1)),
            torch.empty(2, pin_memory=True),
            torch.empty_like(torch.ones(2), device=0),
            torch.ones(2).to("cuda"),
            torch.ones(2).to("cuda", torch.float64, non_blocking=True),
            torch.ones(2).cuda(non_blocking=True),
            next(torch.nn.Linear(2, 2).to("cuda").parameters()),
        ]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert tensors[5].dtype == torch.float64
