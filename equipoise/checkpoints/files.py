"""Settings of others beside the weights, read as data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from equipoise.checkpoints.tensors import refuse
from equipoise.config.yaml_text import read_yaml
from equipoise.errors import EquipoiseError
from equipoise.models import foreign


def yaml_mapping(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file. Raises `ConversionError`, also for a tag that names a class."""
    try:
        loaded = read_yaml(path)
    except (yaml.YAMLError, ValueError) as error:
        refuse("checkpoint.damaged-yaml", f"{path} is damaged: {error}")
    return loaded if isinstance(loaded, dict) else {}


def json_mapping(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `ConversionError`, also for any other value."""
    try:
        return foreign.read_object(path)
    except EquipoiseError as error:
        refuse(error.code, error.message, error.remedy)


def check_folder(folder: Path) -> None:
    """Look through a folder before it is read. Raises `ConversionError`, see `foreign`."""
    try:
        foreign.check_folder(folder)
    except EquipoiseError as error:
        refuse(error.code, error.message, error.remedy)
