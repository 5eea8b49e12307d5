"""The pack for a machine without a network unpacks whole there, and damage to it is seen."""

import os
import subprocess
from pathlib import Path

import pytest

PACK = Path(__file__).with_name("pack.sh")
#: Resolves to a few packages, and installs what is listed as a folder each.
UV = """#!/bin/bash
case "$2" in
    compile)
        printf '%s\\n' torch==2.11.0 nvidia-cublas==13.1 nvidia-ml-py==13.1 torchao==0.18.0 \\
            flashinfer-cubin==0.6.8 numpy==2.5 >"${@: -1}" ;;
    install)
        while [ "$1" != --target ]; do shift; done
        for line in $(cat "${@: -1}"); do mkdir -p "$2/$line"; done ;;
esac
"""


@pytest.mark.deep
def test_the_parts_hold_the_packages_and_both_sources_and_damage_is_seen(tmp_path):
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    for name in ("nemo_rl", "docs"):
        (tmp_path / "rl" / name).mkdir(parents=True)
    variables = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    parts, out = tmp_path / "parts", tmp_path / "out"
    subprocess.run(["bash", PACK, parts, tmp_path / "rl"], env=variables, check=True)
    out.mkdir()
    unpack = (
        f"(cd {parts} && sha256sum --check --quiet sums) && cat {parts}/part-* | tar -xz -C {out}"
    )
    subprocess.run(["bash", "-c", unpack], check=True)
    packages = {path.name for path in (out / "site-packages").iterdir()}
    assert packages == {"nvidia-ml-py==13.1", "torchao==0.18.0", "numpy==2.5"}
    assert (out / "equipoise" / "recipes" / "grpo_fairness.py").is_file()
    assert [path.name for path in (out / "nemo-rl").iterdir()] == ["nemo_rl"]
    with (parts / "part-000").open("ab") as file:
        file.write(b"x")
    assert subprocess.run(["bash", "-c", unpack], capture_output=True).returncode != 0
