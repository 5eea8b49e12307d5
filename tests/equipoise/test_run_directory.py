from pathlib import Path

import pytest

from equipoise.errors import UsageError
from equipoise.run_directory import create_run_directory, open_run_directory


def test_a_name_is_never_reused_silently(tmp_path: Path):
    run = create_run_directory(tmp_path, "fairness", "first")
    run.config.write_text("x: 1")
    with pytest.raises(UsageError, match="exists already") as error:
        create_run_directory(tmp_path, "fairness", "first")
    assert f"--resume {run.root}" in str(error.value)
    assert create_run_directory(tmp_path, "fairness", "second").root.is_dir()


def test_only_a_run_can_be_resumed(tmp_path: Path):
    with pytest.raises(UsageError, match="no run directory"):
        open_run_directory(tmp_path)
    (tmp_path / "config.yaml").write_text("x: 1")
    assert open_run_directory(tmp_path).report == tmp_path / "report.html"
