"""A batch that NeMo-RL's workers take, made where its packages are."""

import torch


def random_batch(lengths_of_rows, vocabulary):
    """Rollouts of random tokens, with an advantage each."""
    from nemo_rl.distributed.batched_data_dict import BatchedDataDict

    generator = torch.Generator().manual_seed(5)
    shape = (len(lengths_of_rows), max(lengths_of_rows))
    lengths = torch.tensor(lengths_of_rows)
    advantages = torch.randn(shape[0], 1, generator=generator)
    return BatchedDataDict(
        {
            "input_ids": torch.randint(0, vocabulary, shape, generator=generator),
            "input_lengths": lengths,
            "token_mask": (torch.arange(shape[1]) < lengths[:, None]).float(),
            "sample_mask": torch.ones(shape[0]),
            "advantages": advantages.expand(shape).clone(),
        }
    )
