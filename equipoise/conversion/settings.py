"""Settings that lie beside a checkpoint in YAML, read as data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from equipoise.config.yaml_text import read_yaml
from equipoise.conversion.tensors import refuse


def yaml_mapping(path: Path) -> Mapping[str, Any]:
    """The mapping in a YAML file. Raises `ConversionError`, also for a tag that names a class."""
    try:
        loaded = yaml.safe_load(read_yaml(path))
    except (yaml.YAMLError, ValueError) as error:
        refuse(f"{path} is damaged: {error}")
    return loaded if isinstance(loaded, dict) else {}
