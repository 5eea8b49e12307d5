"""The NeMo-RL engine: GRPO by NeMo-RL's own functions, with our environments and prompts.

    engine.py         what is done before NeMo-RL is imported, and after it has trained
    configuration.py  the file that it reads
    (equipoise/doctor/launch.py brings the process to NeMo-RL's Python)
    recipe.py         what its `examples/run_grpo.py` does, and what a run hands over
    dataset.py        prompts.jsonl as a dataset of NeMo-RL's
    actor.py          the environment, an actor of Ray's; scoring.py what it computes
    evaluations.py    baseline and final evaluation, by NeMo-RL's validation
    history.py        the logger: history, failures, stops
    reference_policy.py  the policy factory: a resumed run keeps its reference
    process.py        what must be so before NeMo-RL is imported; replies that wait
    checkpoints.py    what is resumed, and what becomes final_checkpoint/
    rehearsal/        the same loop and workers on a CPU with a tiny model

Modules that import NeMo-RL or Ray at the top are actor.py, dataset.py, and the rehearsal's
backend.py and workers; nothing imports them before NeMo-RL is there.
"""
