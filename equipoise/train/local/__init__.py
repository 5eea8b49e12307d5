"""The local engine: `trl.GRPOTrainer` and peft on a CPU or one GPU."""
