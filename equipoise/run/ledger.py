"""The ledger of a run, provenance.json: its origins, and what it has taken so far.

Only the process that holds the run's lock changes it.
"""

import hashlib
import platform
import resource
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict

from environments.chat.accounting import FINGERPRINT, MODEL, added, spent
from equipoise.config import LOCAL_MODEL, LoadedConfig
from equipoise.config.secrets import masked
from equipoise.files.disk import read_model, remove_abandoned, write_json
from equipoise.files.errors import EquipoiseError, UsageError


@contextmanager
def owning(root: Path) -> Iterator[None]:
    """Hold the run's lock for the block. Raises `UsageError` where another process has it.

    The lock goes with its process, however that ends; a suspended one keeps it. What killed
    processes were writing into the run is removed.
    """
    lock = FileLock(root / ".lock", blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise UsageError(
            "run.in-use",
            f"the run {root} is in use by another process",
            f"Wait for it, or end it (`fuser {lock.lock_file}` names it); --resume then goes on.",
        ) from None
    try:
        for folder in (root, *filter(Path.is_dir, root.iterdir())):
            remove_abandoned(folder)
        yield
    finally:
        lock.release()


# --- provenance -----------------------------------------------------------------------------------

#: The chat template among its hashes.
CHAT_TEMPLATE = "chat_template"


class Part(BaseModel):
    """An object of a file that a run writes; its fields are what the file may hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class GitState(Part):
    """The commit of this checkout and whether files differ from it; empty outside a checkout."""

    commit: str = ""
    dirty: bool = False


class Growth(Part):
    """Steps that were added to a run, from one of its checkpoints on."""

    from_step: int
    steps: int
    steps_before: int


@dataclass(frozen=True, slots=True)
class Subject:
    """One model of an audit: `label` is what tables and folders call it.

    `model` is a name on the hub, a folder, the word `local`, or the name at an `endpoint`, which
    has the keys of `EndpointSettings` as they were given. An `adapter` is merged into `model`, or
    into the base that it names itself where that is empty.
    """

    label: str
    model: str
    endpoint: Mapping[str, Any] = field(default_factory=dict)
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to ask: a text for the system message, examples before the question, blinded."""

    name: str
    system: str = ""
    shots: int = 0
    blinded: bool = False


PLAIN = Variant("plain")


class AuditRow(Part):
    """The row of an audit that a run is: which model is asked, and how."""

    subject: Subject = Subject("", "")
    variant: Variant = PLAIN


class StageAccount(Part):
    """The tokens and the time of a stage's replies."""

    prompt_tokens: float = 0
    completion_tokens: float = 0
    generation_time_seconds: float = 0


class Usage(Part):
    """Time, tokens and memory of the last process, and its calls by model and counter."""

    seconds: float = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    peak_memory_bytes: int = 0
    peak_gpu_memory_bytes: int = 0
    calls: Mapping[str, Mapping[str, float]] = {}


class Provenance(Part):
    """Origins of a run: command, code, versions, seeds, hashes; and what it has taken so far.

    No secret ever enters. The file holds the fields that were set.
    """

    model_config = ConfigDict(extra="ignore")

    task: str = ""
    run_name: str = ""
    run_id: str = ""
    engine: str = ""
    model: str = ""
    local_model: bool = False
    local_model_notice: str = ""
    stand_in: str = ""
    rehearsal: bool = False
    audit: AuditRow | None = None
    command: tuple[str, ...] = ()
    started: str = ""
    finished: str | None = None
    git: GitState = GitState()
    python: str = ""
    platform: str = ""
    packages: Mapping[str, str] = {}
    nemo_rl: str = ""
    device: str = ""
    seed: int | None = None
    hashes: Mapping[str, str] = {}
    #: What the reward depends on; None where the environment does not say it.
    sources: Mapping[str, str] | None = None
    seconds: Mapping[str, float] = {}
    generation: Mapping[str, StageAccount] = {}
    usage: Usage = Usage()
    grown: tuple[Growth, ...] = ()
    #: Of a rehearsal: how far the log-probabilities of its sides lie apart.
    logprobs_differ_by: Mapping[str, float | None] = {}


# --- ledger ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ledger:
    """The file of a run's provenance."""

    path: Path

    def create(self, provenance: Provenance) -> None:
        write_json(self.path, provenance.model_dump(mode="json", exclude_unset=True))

    def read(self) -> Provenance:
        """Return the content. Raises `EquipoiseError` where it is damaged or missing."""
        remedy = "Put it back from a copy. Nothing else says what the run was made from."
        return read_model(self.path, Provenance, "run.unreadable-ledger", remedy)

    def update(self, changes: Provenance) -> None:
        """Set the fields that `changes` sets; a mapping is merged into the one before.

        Raises `EquipoiseError` where a hash was another one when the run began.
        """
        content = self.read()
        for name, value in changes.hashes.items():
            if (before := content.hashes.get(name, value)) != value:
                raise EquipoiseError(
                    "run.changed-source",
                    f"since this run began, its {name} changed: it was {before} and is {value}",
                    "Put back what it was, or start a new run.",
                )
        fields = {name: getattr(changes, name) for name in changes.model_fields_set}
        for name, value in fields.items():
            if isinstance(value, Mapping):
                fields[name] = {**(getattr(content, name) or {}), **value}
        self.create(content.model_copy(update=fields))


# --- what a run is made from ----------------------------------------------------------------------


#: Packages that decide what a run computes.
PACKAGES = (
    *("bm25s", "datasets", "numpy", "peft", "regopy", "tokenizers", "torch"),
    *("transformers", "trl", "wandb"),
)
_ROOT = Path(__file__).resolve().parents[2]


def describe_run(loaded: LoadedConfig, run_name: str) -> Provenance:
    """The provenance of a run that starts now."""
    config = loaded.config
    about: dict[str, Any] = {}
    if config.policy.model_name == LOCAL_MODEL:  # the report shows what the task says of it
        about["local_model_notice"] = loaded.data_module.LOCAL_MODEL_NOTICE
    elif stand_in := loaded.env_settings.stand_in:
        about["stand_in"] = stand_in
    return Provenance(
        task=config.equipoise.task,
        run_name=run_name,
        run_id=uuid.uuid4().hex,
        engine=loaded.engine,
        model=config.policy.model_name,
        local_model=config.policy.model_name == LOCAL_MODEL,
        command=command_line(),
        started=now(),
        git=git_state(),
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: _version(name) for name in PACKAGES},
        seed=config.grpo.seed,
        hashes={"environment": code_hash(loaded)},
        seconds={},
        **about,
    )


def code_hash(loaded: LoadedConfig) -> str:
    """SHA-256 of the environment's code."""
    digest = hashlib.sha256()
    module = sys.modules[loaded.environment_class.__module__]
    file = Path(str(module.__file__))
    # The modules of the class's package, or its file where it has none.
    for path in sorted(file.parent.rglob("*.py")) if module.__package__ else [file]:
        digest.update(path.relative_to(file.parent).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def command_line() -> tuple[str, ...]:
    """How this process was started, keys masked."""
    return ("python", *map(masked, sys.argv))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def git_state() -> GitState:
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return GitState()
    dirty = bool(_git("status", "--porcelain"))
    return GitState(commit=commit.decode().strip(), dirty=dirty)


def code_diff() -> bytes:
    """Diff against the commit, as `git apply` takes it, under any settings of git's own."""
    return _git("diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD") or b""


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _git(*arguments: str) -> bytes | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout


# --- usage ----------------------------------------------------------------------------------------

#: Model -> counter -> how often, see docs/judges.md.
Calls = Mapping[str, Mapping[str, float]]

#: Of the counters of a model that is asked: what a reader wants to know of a whole run.
_KEPT = (
    *("calls", "cache_hits", "failures"),
    *("prompt_tokens", "completion_tokens", "answers_without_usage", "cost"),
)


class Meter:
    """Counts what this process takes, and writes it into the run's ledger.

    `elsewhere` is what another process of the run, such as NeMo-RL's actor, has asked of models.
    """

    def __init__(self) -> None:
        self.elsewhere: Calls = {}
        self.tokens = dict.fromkeys(("prompt_tokens", "completion_tokens"), 0)
        self._ledger: Ledger | None = None
        self._warn: Callable[[str], None] = lambda _: None
        self._changes: set[str] = set()
        self._calls_before: Calls = spent()
        self._started = time.monotonic()

    @contextmanager
    def writing(self, ledger: Ledger, warn: Callable[[str], None]) -> Iterator[None]:
        """Write there at the end of the block, and whenever `write` is called in it.

        `warn` is told of a model that is not the one that answered before.
        """
        self._ledger, self._warn = ledger, warn
        try:
            yield
        finally:
            self.write()

    def add_tokens(self, prompt: int, completion: int) -> None:
        """Count what the trained model read and wrote."""
        self.tokens["prompt_tokens"] += prompt
        self.tokens["completion_tokens"] += completion

    def write(self) -> None:
        """Write what this process has used so far."""
        if not self._ledger:
            return
        usage = self.usage()
        self._ledger.update(Provenance(usage=usage))
        for change in changed_models(usage):
            if change not in self._changes:
                self._warn(change)
            self._changes.add(change)

    def usage(self) -> Usage:
        """Time, tokens, memory and calls of this process."""
        before = {m: {n: -k for n, k in c.items()} for m, c in self._calls_before.items()}
        counts_by_model = _sum(_sum(spent(), before), self.elsewhere)
        usage_by_model = {
            model: {name: counts.get(name, 0.0) for name in _KEPT}
            | {n: k for n, k in counts.items() if n.startswith((MODEL, FINGERPRINT)) and k}
            for model, counts in counts_by_model.items()
        }
        calls = {model: counts for model, counts in usage_by_model.items() if any(counts.values())}
        return Usage(
            seconds=round(time.monotonic() - self._started, 1),
            **self.tokens,
            peak_memory_bytes=peak_memory(),
            peak_gpu_memory_bytes=peak_gpu_memory(),
            calls=calls,
        )


def changed_models(usage: Usage) -> list[str]:
    """A sentence for each endpoint whose answers came from more than one model.

    A change goes unseen if the server gives no fingerprint.
    """
    sentences = []
    for model, counts in usage.calls.items():
        names = sorted(counts)
        for kind, words in ((MODEL, "the answering model"), (FINGERPRINT, "its fingerprint")):
            answered = [name.removeprefix(kind) for name in names if name.startswith(kind)]
            if len(answered) > 1:
                sentences.append(
                    f"{model}: {words} changed within the run ({', '.join(answered)}), so not all "
                    "answers are of one model; see usage in provenance.json"
                )
    return sentences


def _sum(first: Calls, second: Calls) -> Calls:
    return {
        model: added(first.get(model, {}), second.get(model, {})) for model in {**first, **second}
    }


def peak_memory() -> int:
    """Peak memory of this process in bytes, without NeMo-RL's workers."""
    # On Linux getrusage keeps, across exec, what the launcher held: uv, while it installs, a lot.
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_gpu_memory() -> int:
    """Peak memory of this process's tensors on its GPU in bytes; 0 without a GPU."""
    torch: Any = sys.modules.get("torch")
    return int(torch.cuda.max_memory_allocated()) if torch and torch.cuda.is_initialized() else 0
