"""Models that packages ship, where Equipoise names a model; see data_prep/packaged_models.py."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data_prep.packaged_models import SMOLLM2, PackagedModelError, located_model, shipped_file
from equipoise.config.schema import CACHE_DIR
from equipoise.errors import EquipoiseError
from equipoise.models.hub import refuse_missing_model
from equipoise.models.libraries import quiet_transformers


def located(name: str, cache_dir: str = CACHE_DIR) -> str:
    """The folder of `smollm2`, made where it is missing; any other name as it is.

    Raises `EquipoiseError` where its package is missing, for a folder that is, and for a name of
    the hub that is not on this machine while the hub cannot be reached.
    """
    if name != SMOLLM2:
        refuse_missing_model(name)
        return name
    quiet_transformers()
    with clear_errors():
        return located_model(name, Path(cache_dir).expanduser())


def refuse_missing_package(name: str) -> None:
    """Raise `EquipoiseError` where a model is named whose package is not installed."""
    if name == SMOLLM2:
        with clear_errors():
            shipped_file(name)


@contextmanager
def clear_errors() -> Iterator[None]:
    """Inside, a package that is missing is an error of the user's, with its remedy."""
    try:
        yield
    except PackagedModelError as error:
        raise EquipoiseError(error.code, str(error), error.remedy) from error
