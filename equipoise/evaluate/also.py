"""Other tasks that both models of a run are asked after training, and the gate over all tasks.

also/<task>.yaml             how a task is asked, written when the run begins
also/<task>/before, after    the rows of an audit, see evaluate.py
gate/                        gate.json, gate.md, gate.xml
"""

import difflib
import shutil
from collections.abc import Mapping
from pathlib import Path

from equipoise.config import LoadedConfig, Options, load_config
from equipoise.config.flags import Setting, evaluations, tasks
from equipoise.config.schema import LOCAL_MODEL
from equipoise.config.sources import read_file
from equipoise.errors import EquipoiseError, UsageError
from equipoise.evaluate.entries import task_of
from equipoise.evaluate.evaluate import run_audit
from equipoise.evaluate.gate import gate_stored
from equipoise.evaluate.gate_report import (
    FailedGateError,
    UndecidedGateError,
    print_gate,
    write_gate,
)
from equipoise.evaluate.plan import PLAIN, Audit, Row, Subject, plan_row, print_plan, select_prompts
from equipoise.report.report import write_report
from equipoise.report.words import STAGES
from equipoise.run.directory import RunDirectory
from equipoise.run.ledger import owning
from equipoise.run.log import kept_log
from equipoise.run.prompts import make_prompts, prepare_task, prompts_here, read_records
from equipoise.run.seals import record_files
from equipoise.terminal.console import Reporter
from equipoise.terminal.exits import Stopped
from equipoise.train.pipeline import model_name
from equipoise.train.stages.around_training import BASELINE, FINAL
from equipoise.train.stages.dry_run import ask_environment

_KEY = "equipoise.evaluation.also"
_YAML = (".yaml", ".yml")
#: A task is asked by the local engine and not trained, also after a first stage without steps.
_AS_COMPANION = (Setting(_KEY, "equipoise.engine", "local"), Setting(_KEY, "grpo.max_num_steps", 1))


# --- before the run ------------------------------------------------------------------------------


def plan_companions(
    loaded: LoadedConfig, reporter: Reporter, *, dry_run: bool, ask: bool
) -> Mapping[str, str]:
    """Check and count what other tasks a run asks; return the configuration of each.

    A dry run fetches nothing, and asks what gives reward with `ask` alone. Raises `EquipoiseError`
    for a task that could not be asked after training.
    """
    if loaded.config.policy.model_name == LOCAL_MODEL:
        reporter.warn(
            "the small local model knows the words of its own task alone: what the gate says of "
            "other tasks shows the pipeline, and says nothing of a model"
        )
    companions: dict[str, LoadedConfig] = {}
    for word in loaded.config.equipoise.evaluation.also:
        task, files = _read_word(word)
        if task in (loaded.config.equipoise.task, *companions):
            raise UsageError(
                "also.repeated-task", f"{_KEY}: {word}: {task} is asked already", "Leave it out."
            )
        options = Options(files, _AS_COMPANION, host=loaded.options)
        companions[task] = load_config(task, options, to_train=False)
    rows = []
    for companion in companions.values():
        prepare_task(companion, reporter.say, dry_run=dry_run, ask=ask)
        if ask or not dry_run:
            ask_environment(companion, reporter)
        config = companion.config
        records = (prompts_here if dry_run else make_prompts)(companion, to_train=False)
        prompts = select_prompts(records, config.equipoise.evaluation.split, None, config.grpo.seed)
        sides = [Row(Subject(stage, config.policy.model_name), PLAIN) for stage in STAGES]
        rows += [plan_row(companion, side, prompts, Path()) for side in sides]
    print_plan(reporter, rows)
    return {task: companion.to_yaml() for task, companion in companions.items()}


def _read_word(word: str) -> tuple[str, tuple[Path, ...]]:
    """The task that is named, or that a file of the user's names, and that file."""
    if not word.endswith(_YAML):
        return _check_name(word), ()
    source = read_file(Path(word), by_user=True)
    section = source.tree.get("equipoise")
    task = section.get("task") if isinstance(section, dict) else None
    if not isinstance(task, str):
        reasons = [problem.message for problem in source.problems] or ["it names no equipoise.task"]
        raise UsageError(
            "also.invalid-word",
            f"{_KEY}: {word}: {', '.join(reasons)}",
            "Name a task, or a file that says equipoise.task and what is to differ for it.",
        )
    return _check_name(task), (Path(word),)


def _check_name(task: str) -> str:
    names = (*tasks(), *evaluations())
    if task not in names:
        near = difflib.get_close_matches(task, names, n=1)
        hint = f", did you mean {near[0]}?" if near else ""
        raise UsageError(
            "also.unknown-task",
            f"{_KEY}: there is no task {task}{hint}",
            f"There are {', '.join(names)}.",
        )
    return task


# --- after it ------------------------------------------------------------------------------------


def gate_run(run: RunDirectory, reporter: Reporter, *, fail: bool) -> None:
    """Ask what other tasks are missing, and write the verdict over all of them into the run.

    With `fail` it raises a verdict that is no pass. Raises `EquipoiseError` where a task could not
    be asked; the others are asked and gated all the same.
    """
    with kept_log(reporter) as log_to, owning(run.root, reporter.warn):
        log_to(run.log)
        try:
            errors = _ask_companions(run, reporter)
        except Stopped:
            raise Stopped(f"stopped; --resume {run.root} continues it") from None
        reporter.heading("Gate")
        result = gate_stored(str(run.root / BASELINE), str(run.root / FINAL), {}, reporter)
        write_gate(result, run.gate, run.gate.with_suffix(".xml"), run.gate.with_suffix(".md"))
        record_files(run, run.gate.parent)
        write_report(run.root)
        try:
            print_gate(result, run.gate, reporter)
        except (FailedGateError, UndecidedGateError) as verdict:
            if fail:
                raise
            reporter.warn(str(verdict))
        if errors:
            raise EquipoiseError(
                "also.failed-tasks",
                "\n".join([f"{len(errors)} other tasks could not be asked:", *errors]),
                f"The run itself is finished. --resume {run.root} asks them again.",
            )


def _ask_companions(run: RunDirectory, reporter: Reporter) -> list[str]:
    """Ask both models each task that they were not asked; return what went wrong, by task."""
    loaded = load_config(task_of(run), Options((run.config,)))
    model = loaded.config.policy.model_name
    if model == LOCAL_MODEL:  # another task would make its own
        model = model_name(loaded, read_records(run.prompts), reporter)
    subjects = Subject("before", model), Subject("after", str(run.final_checkpoint))
    errors = []
    for file in sorted(run.also.glob("*.yaml")):
        try:
            run_audit(_audit(file, subjects), run.also, reporter)
        except EquipoiseError as error:
            reporter.warn(f"{file.stem}: {error}")
            errors.append(f"{file.stem}: {error.message}")
    # An adapter was merged there, which is not needed any longer.
    shutil.rmtree(run.also / "models", ignore_errors=True)
    return errors


def _audit(file: Path, subjects: tuple[Subject, ...]) -> Audit:
    """The audit of one task; either model brings its own tokenizer, unless another one is named."""
    task = file.stem
    policy = load_config(task, Options((file,)), to_train=False).config.policy
    brings_tokenizer = policy.tokenizer.name == policy.model_name
    tokenizer = ("--model", "policy.tokenizer.name", "${policy.model_name}")
    return Audit(
        (task,),
        subjects,
        config_files=(str(file),),
        settings=(tokenizer,) if brings_tokenizer else (),
    )
