"""wandb, without ever asking a question or stopping a run.

Online when a key is there, offline without one, not at all with `logger.wandb_enabled: false`.
Figures alone are sent: no prompt and no completion.
"""

import logging
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from equipoise.config.schema import Config

_LOG = logging.getLogger(__name__)
_HOST = "api.wandb.ai"


class Tracker:
    """A wandb run as a context; every failure of wandb is a warning and ends the tracking.

    A resumed run has the `run_id` that it started with and goes on in the same wandb run.
    """

    def __init__(self, config: Config, folder: Path, run_id: str) -> None:
        self._config = config
        self._folder = folder
        self._run_id = run_id
        self._run: Any = None

    def __enter__(self) -> Self:
        """Start the run, or continue it when the folder has one."""
        if self._config.logger.wandb_enabled:
            self._attempt(self._start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the run."""
        if self._run is not None:
            self._attempt(lambda: self._run.finish(exit_code=0 if error is None else 1))

    def log(self, row: Mapping[str, float | None]) -> None:
        """Send one row of the training history."""
        if self._run is None:
            return
        figures = {f"train/{name}": value for name, value in row.items() if value is not None}
        self._attempt(lambda: self._run.log(figures, step=int(row["step"] or 0)))

    def _start(self) -> None:
        # The settings below silence the run, but not what TRL asks wandb at each checkpoint.
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        settings = self._config.logger.wandb
        self._run = wandb.init(
            project=settings.project,
            name=settings.name or self._folder.name,
            entity=settings.entity,
            dir=str(self._folder),
            id=self._run_id,
            resume="allow",
            mode=wandb_mode(),
            settings=wandb.Settings(silent=True, console="off", init_timeout=30),
        )

    def _attempt(self, action: Any) -> None:
        # wandb reports trouble through many exception types of its own and of its transport; a
        # run that trains must not end because its tracker does.
        try:
            action()
        except Exception as error:  # noqa: BLE001
            _LOG.warning("wandb is off from here on: %s", error)
            self._run = None


def wandb_mode() -> Literal["online", "offline"] | None:
    """Online exactly when a key is there; None leaves the choice to `WANDB_MODE`."""
    if os.environ.get("WANDB_MODE"):
        return None
    return "online" if os.environ.get("WANDB_API_KEY") or _netrc_has_key() else "offline"


def _netrc_has_key() -> bool:
    try:
        return netrc.netrc().authenticators(_HOST) is not None
    except (OSError, netrc.NetrcParseError):
        return False
