"""What gives reward: one package for each task, and the contract they share in `base`."""
