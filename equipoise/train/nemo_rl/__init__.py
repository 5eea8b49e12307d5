"""The NeMo-RL engine: GRPO by NeMo-RL's own functions, with our environments and prompts.

Read recipe.py first: it does what NeMo-RL's `examples/run_grpo.py` does. Modules that import
NeMo-RL or Ray at the top are actor.py, dataset.py and the rehearsal's workers.
"""
