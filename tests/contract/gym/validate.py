"""In a process with NeMo Gym on its path: its own checks of exported environments."""

import asyncio
import sys
from pathlib import Path

import yaml
from nemo_gym.environment.onboarding import (
    EnvironmentOnboardingError,
    VerifierRunSpec,
    exercise_verifier_run,
)
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
    said = yaml.safe_load(manifest.read_text())
    spec = VerifierRunSpec(
        name=report.name,
        kind=report.kind,
        resources_server=report.name,
        manifest_path=str(manifest),
        app_path=str(server / "app.py"),
        component_root=str(folder),
        server_dir=str(server),
        bundled_component=False,
        reward_range=tuple(said["reward"]["range"]),
        higher_is_better=said["reward"]["higher_is_better"],
        determinism=said["determinism"],
    )
    try:
        checked = asyncio.run(exercise_verifier_run(spec))
        print("cases:", report.name, len(checked.cases))
    except EnvironmentOnboardingError as error:
        print("cases:", report.name, str(error).rpartition(": ")[2])
