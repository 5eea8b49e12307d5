"""The rehearsal: NeMo-RL's real loop and training worker on a CPU, with a tiny model."""
