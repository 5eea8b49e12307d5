"""The environment of a task, ready to score, wherever it runs: here or in a Ray actor."""

import importlib
from collections.abc import Mapping
from typing import Any, cast

from environments.base import Environment


def build_environment(class_name: str, settings: Mapping[str, Any]) -> Environment:
    """The environment `package.module.Class` with the keys of `env.<name>`."""
    module, _, name = class_name.rpartition(".")
    environment_class = getattr(importlib.import_module(module), name)
    environment = environment_class(environment_class.Settings.model_validate(dict(settings)))
    return cast("Environment", environment)
