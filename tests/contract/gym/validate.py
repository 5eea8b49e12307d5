"""In a process with NeMo Gym on its path: its own checks of exported environments."""

import sys
from pathlib import Path

from nemo_gym.environment.validation import validate_environment

for name in sys.argv[1:]:
    (manifest,) = Path(name).glob("environments/*/manifest.yaml")
    report = validate_environment(manifest)
    print(report.name, report.inferred_profile, *report.warnings, *report.synchronized_fields)
