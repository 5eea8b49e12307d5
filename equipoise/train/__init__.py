"""Engines: what turns prompts and an environment into a trained model.

Each opens a run's `Policy`, which the stages around training have in common: local_policy.py with
TRL (local.py), nemo_rl with NeMo-RL, which samples where it trains.
"""
