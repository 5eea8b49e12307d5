import pickle
from pathlib import Path

import pytest

from data_prep.records import DataError
from environments.base import CodedError
from environments.dharma.policy import PolicyError
from environments.yaml_file import YamlFileError
from equipoise.files.disk import DamagedFileError
from equipoise.files.errors import UsageError


@pytest.mark.parametrize(
    "error",
    [
        UsageError("disk.full", "the disk is full", "Free some space."),
        PolicyError("policy.no-tests", "holds no tests"),
        DataError("rows.invalid", Path("a.csv"), "table", ["line 1: no cell"]),
        DamagedFileError("file.cut", Path("a.json"), "cut off", line=3),
        YamlFileError("yaml.long", Path("a.yaml"), ["longer than 9 bytes"]),
    ],
)
def test_an_error_comes_whole_from_another_process(error: CodedError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (copy.code, str(copy), vars(copy)) == (error.code, str(error), vars(error))
    assert error.code not in str(error)
