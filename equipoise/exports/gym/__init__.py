"""The environments for NeMo Gym: one resources server for every scope.

    POST /verify ──> server.py ──> service.py ──> cohorts.py ──> task.py ──> environment.score
                        <──────────── Answer ─────────────┘

    cohorts.py   rollouts that come one by one, put together: the part that is worth reading
    service.py   settings, prompts and reference; a request becomes a rollout; cases for Gym's check
    server.py    the shell for nemo-gym, the one module that imports it
    export.py    the folder that `gym env start` takes, made from a run

All but server.py runs and is tested without nemo-gym and without HTTP.
"""
