"""The sweep of nemo_configs/sweeps: every cell is a run that starts."""

from itertools import product

import yaml

from equipoise.config import load_config
from equipoise.config.compose import CONFIG_FOLDER
from equipoise.config.words import parse_flags

SWEEP = yaml.safe_load((CONFIG_FOLDER / "sweeps" / "fairness.yaml").read_text())


def test_a_cell_of_the_sweep_is_a_configuration():
    values = {key: p.get("values", [p.get("value")]) for key, p in SWEEP["parameters"].items()}
    start = SWEEP["command"].index("${program}") + 1
    for cell in product(*values.values()):
        words = [f"{key}={value}" for key, value in zip(values, cell, strict=True)]
        load_config("fairness", parse_flags("x", [*SWEEP["command"][start:-1], *words]))
