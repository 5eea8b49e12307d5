"""What NeMo-RL's Python says of itself, and of a Ray that is gone."""

import platform
import sys
from importlib import metadata
from pathlib import Path

import pytest

from equipoise.config.nemo_rl.assumptions import OWN_CLUSTER
from equipoise.machine import python, script
from equipoise.machine.python import look, look_at_machine
from tests.refusals import refusal


@pytest.mark.usefixtures("only_ray")
class TestAPython:
    @pytest.mark.deep
    def test_a_python_tells_its_versions(self, monkeypatch):
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        seen = look(Path(sys.executable), ("rich", "no-such-package"))
        assert seen.python == platform.python_version()
        assert seen.versions == {"rich": metadata.version("rich"), "no-such-package": None}
        assert seen.missing(("rich", "no-such-package")) == ["no-such-package"]

    @pytest.mark.deep
    def test_a_cluster_that_is_gone_is_said_at_once(self, monkeypatch):
        pytest.importorskip("ray", reason="the extra rehearse is needed")
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
        seen = look(Path(sys.executable), ())
        assert seen.problem.startswith("nobody answers at 127.0.0.1:9")
        assert "RAY_ADDRESS is wrong" in seen.problem

    def test_the_address_that_a_killed_cluster_leaves_is_named(self, monkeypatch, tmp_path):
        services = pytest.importorskip("ray._private.services", reason="needs the extra rehearse")
        # Ray prefers a cluster that it finds among the machine's processes, whosever it is.
        monkeypatch.setattr(services, "find_gcs_addresses", set)
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:9")
        remedy = f"nobody answers at 127.0.0.1:9 .* remove {tmp_path}/ray/ray_current_cluster"
        with pytest.raises(RuntimeError, match=remedy):
            script.cluster_gpus(OWN_CLUSTER)

    def test_one_that_is_not_there_or_does_not_answer_is_named(self, tmp_path, monkeypatch):
        monkeypatch.setenv("NEMO_RL_PYTHON", str(tmp_path / "absent"))
        with refusal("nemo-rl.no-python"):
            look_at_machine(tmp_path, {})
        with refusal("nemo-rl.silent-python"):
            look(tmp_path / "python", ())
        with refusal("nemo-rl.silent-python"):
            look(Path("/bin/false"), ())

    def test_a_slow_one_is_not_waited_for_for_ever(self, tmp_path, monkeypatch):
        monkeypatch.setattr(python, "_SECONDS", 0.1)
        slow = tmp_path / "python"
        slow.write_text("#!/bin/sh\nexec sleep 5\n")
        slow.chmod(0o755)
        with refusal("nemo-rl.slow-python", "0.1"):
            look(slow, ())
