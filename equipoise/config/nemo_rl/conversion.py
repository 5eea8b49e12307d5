"""Megatron's form of a model, which NeMo-RL makes once and loads unseen ever after."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from filelock import FileLock, Timeout

from equipoise.config import Config
from equipoise.files.errors import EquipoiseError

VARIABLE = "NRL_MEGATRON_CHECKPOINT_DIR"
_ITERATION = "iter_0000000"
#: Written last by Megatron-Bridge, beside the iteration.
_TRACKERS = ("latest_train_state.pt", "latest_checkpointed_iteration.txt")
#: Seconds between two looks whether the conversion is done.
_INTERVAL = 2.0


def conversions(environment: Mapping[str, str]) -> Path:
    """Return the folder in which NeMo-RL keeps them."""
    home = environment.get("HF_HOME", "").strip() or Path.home() / ".cache" / "huggingface"
    return Path(environment.get(VARIABLE) or Path(home) / "nemo_rl").expanduser()


def conversion_of(model: str, environment: Mapping[str, str]) -> Path:
    """Return the folder of a model's conversion; a folder's model has a name of its own there."""
    name = f"model_{model.replace('/', '_')}" if Path(model).exists() else model
    return conversions(environment) / name


def is_converted(folder: Path) -> bool:
    """Whether the conversion was finished: NeMo-RL itself asks for no more than an iteration."""
    files = [folder / _ITERATION / name for name in (".metadata", "run_config.yaml")]
    return all(file.is_file() for file in files) and any(
        (folder / name).is_file() for name in _TRACKERS
    )


def broken_conversion(folder: Path) -> EquipoiseError | None:
    """The error of a conversion that was begun and never finished; None for any other folder."""
    if not (folder / _ITERATION).exists() or is_converted(folder):
        return None
    return EquipoiseError(
        "megatron.broken-conversion",
        f"{folder} is not whole: its conversion to Megatron's form was broken off, and NeMo-RL "
        "would load it",
        f"Unless another run is converting the model right now: rm -r {folder}",
    )


@contextmanager
def converting(
    config: Config, model: str, environment: Mapping[str, str], say: Callable[[str], None]
) -> Iterator[None]:
    """Let one run at a time begin a model's conversion; those that wait find it done.

    The lock is free again as soon as the conversion is whole. Raises `EquipoiseError` for one that
    was broken off.
    """
    policy = config.policy
    folder = conversion_of(model, environment)
    if not policy.megatron_cfg.enabled or policy.pretrained_checkpoint or is_converted(folder):
        yield
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Released by another thread than the one that takes it.
    lock = FileLock(f"{folder}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another run converts the model for Megatron: waiting for {folder}")
        lock.acquire()
    ended = Event()

    def release_when_converted() -> None:
        while not ended.wait(_INTERVAL):
            if is_converted(folder):
                break
        lock.release()

    watcher = Thread(target=release_when_converted, daemon=True)
    try:
        if error := broken_conversion(folder):
            raise error
        watcher.start()
        yield
    finally:
        ended.set()
        if watcher.ident is None:
            lock.release()
        else:
            watcher.join()
