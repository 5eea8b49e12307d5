"""Usage of the process that works on a run, for provenance.json: time, tokens, memory, calls."""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from environments.chat.accounting import FINGERPRINT, MODEL, added, spent
from equipoise.run.ledger import Ledger, Usage

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
        self._own: Calls = {}
        self._spent: Callable[[], Calls] = spent
        self._ledger: Ledger | None = None
        self._warn: Callable[[str], None] = lambda _: None
        self._changes: set[str] = set()
        self._calls_before: Calls = spent()
        self._started = time.monotonic()

    @contextmanager
    def writing(self, ledger: Ledger, warn: Callable[[str], None]) -> Iterator[None]:
        """Write there at the end of the block, and whenever `write` is called in it.

        `warn` hears of a model that is asked and is no longer the one that answered before.
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

    def add_calls(self, model: str, counts: Mapping[str, float]) -> None:
        """Count what was asked of a model whose accounts are not listed, see `Accounts`."""
        self._own = _sum(self._own, {model: counts})

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Do not charge this run for calls of listed models made in the block."""
        before = spent()
        self._spent = lambda: before
        try:
            yield
        finally:
            self._calls_before = _sum(self._calls_before, _minus(spent(), before))
            self._spent = spent

    def write(self) -> None:
        """Write what this process has used so far."""
        if not self._ledger:
            return
        usage = self.usage()
        self._ledger.update(usage=usage)
        for change in changed_models(usage):
            if change not in self._changes:
                self._warn(change)
            self._changes.add(change)

    def usage(self) -> Usage:
        """Time, tokens, memory and calls of this process."""
        counts_by_model = _sum(
            _minus(self._spent(), self._calls_before), _sum(self.elsewhere, self._own)
        )
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
    """A sentence for each model that was asked and not always answered by the same one.

    Servers that name no fingerprint say nothing of a change.
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


def _minus(first: Calls, second: Calls) -> Calls:
    return _sum(first, {m: {n: -k for n, k in counts.items()} for m, counts in second.items()})


def _sum(first: Calls, second: Calls) -> Calls:
    return {
        model: added(first.get(model, {}), second.get(model, {})) for model in {**first, **second}
    }


def peak_memory() -> int:
    """The most memory that this process has held, in bytes; NeMo-RL's workers are others."""
    # On Linux getrusage keeps, across exec, what the launcher held: uv, while it installs, a lot.
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peak_gpu_memory() -> int:
    """The most that tensors of this process have held on its GPU, in bytes; 0 without one."""
    torch: Any = sys.modules.get("torch")
    return int(torch.cuda.max_memory_allocated()) if torch and torch.cuda.is_initialized() else 0
