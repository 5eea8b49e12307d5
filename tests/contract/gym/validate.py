"""In a process with NeMo Gym on its path: its own checks of exported environments."""

import sys
from pathlib import Path

from nemo_gym.environment.validation import validate_environment
from nemo_gym.task_data import load_task_data_schema, validate_jsonl_rows

for name in sys.argv[1:]:
    folder = Path(name)
    (manifest,) = folder.glob("environments/*/manifest.yaml")
    report = validate_environment(manifest)
    server = folder / "resources_servers" / report.name
    schema = load_task_data_schema(server)
    for dataset in report.datasets:
        lines = Path(dataset.path).read_text().splitlines()
        rows = validate_jsonl_rows(report.name, schema, dataset.path, lines)
        assert rows.clean, rows.summary()
    print(report.name, report.inferred_profile, *report.warnings, *report.synchronized_fields)
