"""The environments for NeMo Gym: one resources server for every scope.

    POST /verify ──> server.py ──> service.py ──> cohorts.py ──> rewards/ ──> environment.score
                        <──────────── Answer ─────────────┘

    answers.py   what `/verify` answers, kept so that a restart loses none
    cohorts.py   rollouts that come one by one, put together: the part that is worth reading
    service.py   settings, prompts and reference; a request becomes a rollout
    server.py    the shell for nemo-gym, the one module that imports it
    fixture.py   cases with which Gym checks the server
    export.py    the folder that `gym env start` takes, made from a run

All but server.py runs and is tested without nemo-gym and without HTTP.
"""
