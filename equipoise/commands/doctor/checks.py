"""A check, its input and its findings."""

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from equipoise.config import Config, LoadedConfig
from equipoise.config.schema import Engine
from equipoise.files.errors import EquipoiseError, UsageError
from equipoise.files.nemo_rl import is_installed, is_launched

Status = Literal["failure", "warning", "not checked", "ok"]
STATUSES: tuple[Status, ...] = get_args(Status)
#: Who asks: the doctor, a dry run, or a start, which does without what takes long.
Purpose = Literal["doctor", "plan", "start"]
#: Where the run is to work: on this machine, in a job of Slurm's, or where nobody has said.
Place = Literal["here", "job", "elsewhere"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found; `remedy` is one line, and empty for the check's usual one."""

    status: Status
    says: str
    remedy: str = ""


def ok(says: str) -> Finding:
    """Nothing is wrong."""
    return Finding("ok", says)


def warning(says: str, remedy: str = "") -> Finding:
    """The run works, but this is probably a mistake."""
    return Finding("warning", says, remedy)


def failure(says: str, remedy: str = "") -> Finding:
    """The run would fail."""
    return Finding("failure", says, remedy)


def unchecked(why: str) -> Finding:
    """The check was left out."""
    return Finding("not checked", why)


NVIDIA_SMI = "nvidia-smi"
CONTAINER = "EQUIPOISE_CONTAINER"


@dataclass(frozen=True, slots=True)
class Job:
    """A job of containers/slurm/grpo.sbatch, by the variables that it reads."""

    container: str  # empty: NeMo-RL is NEMO_RL_PATH, in the Python NEMO_RL_PYTHON
    output: Path
    shared: Path
    mounted: tuple[Path, ...]  # what the container sees, by its names there
    environment: Mapping[str, str]  # what the job sets

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Job":
        """The job that `sbatch` would start in this folder."""
        output, shared = (
            Path(environment.get(name) or default).absolute()
            for name, default in (
                ("EQUIPOISE_OUTPUT", "results"),
                ("EQUIPOISE_SHARED", "results/shared"),
            )
        )
        defaults = {
            "HF_HOME": "huggingface",
            "NRL_MEGATRON_CHECKPOINT_DIR": "megatron",
            "EQUIPOISE_OVERLAY_DIR": "packages",
        }
        names = {
            name: environment.get(name) or str(shared / folder) for name, folder in defaults.items()
        }
        mounts = environment.get("EQUIPOISE_MOUNTS", "").split(",")
        inside = (mount.split(":")[:2][-1] for mount in mounts if mount)
        mounted = (Path.cwd(), output, shared, *map(Path, (*names.values(), *inside)))
        container = environment.get(CONTAINER, "")
        return cls(container, output, shared, mounted, {**environment, **names})

    @property
    def hub(self) -> Path:
        """The hub's cache in the job."""
        cache = self.environment.get("HF_HUB_CACHE")
        return Path(cache or Path(self.environment["HF_HOME"]) / "hub").expanduser()

    def sees(self, path: Path) -> bool:
        """Whether the run can read a path of this machine."""
        absolute = path.absolute()
        return not self.container or any(absolute.is_relative_to(root) for root in self.mounted)


@dataclass(frozen=True)
class Case:
    """The input of the checks; `loaded` is None without a task or a valid configuration."""

    loaded: LoadedConfig | None = None
    invalid: UsageError | None = None  # why the configuration is not valid
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    online: bool = True
    purpose: Purpose = "doctor"
    _facts: dict[Callable[["Case"], Any], Any] = field(default_factory=dict)

    @property
    def configured(self) -> LoadedConfig:
        """The valid configuration, for checks that are run with one alone."""
        assert self.loaded is not None
        return self.loaded

    @property
    def config(self) -> Config:
        return self.configured.config

    @property
    def without_run(self) -> str:
        return "the configuration is not valid" if self.invalid else "no task is named"

    @property
    def on_nemo_rl(self) -> bool:
        return self.loaded is not None and self.loaded.engine == "nemo_rl"

    @cached_property
    def place(self) -> Place:
        """The machine that the run is for, which is the one to compare it with."""
        if not self.on_nemo_rl or self.purpose == "start" or is_launched():
            return "here"
        if self.job:
            return "job"
        if self.purpose == "doctor":
            return "here"
        one_node = self.config.cluster.num_nodes == 1
        is_here = one_node and is_installed() and shutil.which(NVIDIA_SMI)
        return "here" if is_here else "elsewhere"

    @property
    def job(self) -> Job | None:
        """The job of Slurm's that this login node prepares; None inside one, and elsewhere.

        A plan may come before the image; the doctor is asked once all is there.
        """
        names = self.environment
        if not self.on_nemo_rl or self.purpose == "start" or "SLURM_JOB_ID" in names:
            return None
        expected = self.purpose == "doctor" and shutil.which("sbatch")
        return Job.of(names) if names.get(CONTAINER) or expected else None

    def once(self, look: Callable[["Case"], T]) -> T:
        """Look once, whichever check asks first."""
        if look not in self._facts:
            self._facts[look] = look(self)
        return self._facts[look]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Check:
    """A question to the machine. `remedy` is used where a finding has none of its own.

    A start of a run with one of the engines in `starts` asks it as well, and a dry run if it
    `plans`. Without a task only checks that need no run are made.
    """

    name: str
    remedy: str
    run: Callable[[Case], Iterable[Finding]]
    needs_run: bool = True
    starts: tuple[Engine, ...] = ()
    plans: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A finding with its check."""

    check: Check
    status: Status
    says: str
    remedy: str

    @classmethod
    def of(cls, check: Check, finding: Finding) -> "Result":
        """The finding, with the check's remedy where something is wrong and it has none."""
        remedy = check.remedy if finding.status in ("failure", "warning") else ""
        return cls(check, finding.status, finding.says, finding.remedy or remedy)


def results_of(checks: Iterable[Check], case: Case) -> list[Result]:
    """The results of all checks, in their order; an `EquipoiseError` is a failure."""
    results = []
    for check in checks:
        try:
            for finding in check.run(case):
                results.append(Result.of(check, finding))  # noqa: PERF401  an error may follow
        except EquipoiseError as error:
            results.append(Result.of(check, failure(error.message, error.remedy)))
    return results
