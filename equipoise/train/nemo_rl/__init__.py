"""The NeMo-RL engine: NeMo-RL's own `run_grpo.py`, unchanged, with our environments and prompts.

    engine.py         what is done before, around and after it
    configuration.py  the file that it reads
    (equipoise/machine/launch.py brings the process to NeMo-RL's Python)
    dataset.py        prompts.jsonl as a dataset of NeMo-RL's
    scoring.py        what the environment's actor computes; actor.py is its thin shell for Ray
    process.py        what must be so before NeMo-RL is imported, and where our actors run
    together.py       whole groups scored at once where NeMo-RL generates asynchronously
    whole_sets.py     the same in the replay buffer of asynchronous GRPO
    watch.py          history, failures, stops, when stages are; hooks.py puts it into NeMo-RL
    checkpoints.py    what is resumed, and what becomes final_checkpoint/
    rehearsal/        the same loop and workers on a CPU with a tiny model

Modules that import NeMo-RL or Ray at the top are actor.py, whole_sets.py, dataset.py, and the
rehearsal's backend.py and workers; NeMo-RL imports them by name, and nothing else does before
NeMo-RL is there.
"""
