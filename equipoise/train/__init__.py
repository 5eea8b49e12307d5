"""Engines: what turns prompts and an environment into a trained model.

probe.py has the stages around training of both engines, and measures trivial baselines. `local`
trains with TRL; `nemo_rl` takes a `Job` through its stages, for NeMo-RL samples where it trains.
"""
