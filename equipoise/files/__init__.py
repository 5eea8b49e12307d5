"""The ground floor: files that appear whole, prompts, models, NeMo-RL, errors, the terminal."""
