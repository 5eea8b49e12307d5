"""Paths of a configuration."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

#: Said from the folder in which a run is started, found by a worker in any other.
AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
