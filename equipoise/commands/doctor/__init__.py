"""A machine and a run: what would keep the run from working, before it costs GPU time.

checks.py      a check, its input and its findings; the machine that a run is for
machine.py     GPUs, memory, folders, disks and NeMo-RL, of this machine or of a cluster
task.py        the model with its chat template, prompts and reward, by the hooks of the task

Here is every check: its usual remedy, what answers it, and who asks it. docs/troubleshooting.md has
the table of what each looks at.
"""

from collections.abc import Callable, Iterator, Sequence

from equipoise.commands.doctor import machine, task
from equipoise.commands.doctor.checks import (
    Case,
    Check,
    Finding,
    Result,
    failure,
    ok,
    results_of,
    unchecked,
    warning,
)
from equipoise.files.errors import EquipoiseError


def configuration(case: Case) -> Iterator[Finding]:
    """Check the configuration, and warn of settings that are probably mistakes."""
    if case.invalid:
        yield failure(case.invalid.message, case.invalid.remedy)
    elif case.loaded is None:
        yield unchecked(case.without_run)
    else:
        name, engine = case.config.equipoise.task, case.loaded.engine
        fine = ok(f"{name} on the engine {engine}, model {case.config.policy.model_name}")
        yield from [warning(text) for text in case.loaded.warnings] or [fine]


#: In the order of the table: what others need comes before them.
CHECKS = (
    Check(
        "configuration",
        "Correct the keys that it names: docs/configuration.md.",
        configuration,
        needs_run=False,
    ),
    Check(
        "NeMo-RL", machine.REMEDY, machine.nemo_rl, needs_run=False, starts=("nemo_rl",), plans=True
    ),
    Check(
        "GPUs",
        "Take a node with such GPUs, or --config nemo_configs/local.yaml for a CPU.",
        machine.gpus,
        needs_run=False,
        starts=("local", "nemo_rl"),
        plans=True,
    ),
    Check(
        "memory",
        "Lower policy.train_micro_batch_size, train a LoRA, or take larger or more GPUs.",
        machine.memory,
        starts=("local",),
        plans=True,
    ),
    Check(
        "folders",
        "Free some space, choose other folders, or lower checkpointing.keep_top_k.",
        machine.folders,
        plans=True,
    ),
    Check(
        "model",
        "Name a folder with a Hugging Face model, or a model on the hub, with --model-name.",
        task.model,
        plans=True,
    ),
    Check(
        "prompts",
        "Correct the file or equipoise.data, or let equipoise.data.module make the prompts.",
        task.prompts,
    ),
    Check("reward", "Correct env in the configuration: docs/<task>.md.", task.reward),
)


def examine(case: Case) -> list[Result]:
    """Run every check; each gives one result at least."""
    selected = [check for check in CHECKS if case.loaded or not check.needs_run]
    results = results_of(selected, case)
    why = unchecked(case.without_run)
    results += [Result.of(check, why) for check in CHECKS if check not in selected]
    return sorted(results, key=lambda result: CHECKS.index(result.check))


def refuse_unfit(case: Case, warn: Callable[[str], None]) -> None:
    """Run the checks of a start. Raises one `EquipoiseError` with everything that would fail."""
    checks = [check for check in CHECKS if case.configured.engine in check.starts]
    refuse([Result.of(check, finding) for check in checks for finding in check.run(case)], warn)


def compare_plan(case: Case, warn: Callable[[str], None], say: Callable[[str], None]) -> None:
    """Compare a plan with the machine that it is for, and say what was not compared.

    Raises one `EquipoiseError` with everything for which the run could not work.
    """
    refuse(results_of([check for check in CHECKS if check.plans], case), warn, say)


def refuse(
    results: Sequence[Result],
    warn: Callable[[str], None],
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Log the warnings, and raise one `EquipoiseError` for the failures."""
    for result in results:
        if result.status == "warning":
            warn(result.says)
        elif result.status == "not checked":
            say(f"not compared: {result.check.name}: {result.says}")
    failures = [result for result in results if result.status == "failure"]
    if len(failures) == 1:
        raise EquipoiseError("start.failed-check", failures[0].says, failures[0].remedy)
    if failures:
        raise EquipoiseError(
            "start.failed-checks", "\n".join(f"{r.says}\n  {r.remedy}" for r in failures), ""
        )
