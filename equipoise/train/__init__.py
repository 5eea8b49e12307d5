"""Engines: what turns prompts and an environment into a trained model.

probe.py measures trivial baselines, on both engines. `local` trains with TRL; `nemo_rl` takes
a `Job` through all its stages, since NeMo-RL samples in the process that trains.
"""
