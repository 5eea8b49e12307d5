"""The model card: README.md beside the trained weights, made from the run's files alone.

Nothing in it is trusted: all but the template itself is escaped, as Markdown and as HTML.
The same files give the same bytes.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import ModelCardData
from markupsafe import Markup

from equipoise.files.disk import read_json, write_text
from equipoise.files.errors import EquipoiseError
from equipoise.files.untrusted import check_folder
from equipoise.report.head import alerts, evaluated_on, run_name, run_notes, run_title
from equipoise.report.renderers import escaped, grid, templates
from equipoise.report.run_files import Json, RunFiles, read_run
from equipoise.report.tables import outcome, summary, verdict_table
from equipoise.report.words import printable
from equipoise.run.directory import RunDirectory

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def write_card(run_dir: Path) -> None:
    """Write README.md into the run's `final_checkpoint`, where it has one.

    Raises `EquipoiseError` for a link there: a run may be a stranger's, and lead anywhere.
    """
    run = RunDirectory(run_dir)
    if not run.final_checkpoint.is_dir():
        return
    if run.final_checkpoint.is_symlink():
        raise EquipoiseError(
            "card.link",
            f"{run.final_checkpoint} is a link; the card would be written where it leads",
            "Put the folder itself there.",
        )
    check_folder(run.final_checkpoint)
    path = run.final_checkpoint / "README.md"
    config = run.final_checkpoint / "adapter_config.json"  # PEFT's
    adapter = read_json(config) if config.is_file() else {}
    text = _card(read_run(run_dir, replies=False), adapter)
    write_text(path, text)


def _card(run: RunFiles, adapter: Json) -> str:
    """Render the card. `adapter` is PEFT's settings, empty for a whole model."""
    environment = templates(
        finalize=lambda value: value if isinstance(value, Markup) else escaped(value)
    )
    environment.filters["grid"] = grid
    return (
        environment.get_template("card.md.j2").render(
            metadata=Markup(_metadata(run, adapter).to_yaml()),  # noqa: S704  YAML between two lines
            title=run_title(run),
            notes=run_notes(run),
            outcome=f"{outcome(run)} {summary(run)}",
            alerts=alerts(run),
            evaluated_on=evaluated_on(run),
            confidence=run.confidence,
            verdicts=verdict_table(run),
            facts=tuple(_facts(run, adapter)),
            adapter=bool(adapter),
        )
        + "\n"
    )


def _metadata(run: RunFiles, adapter: Json) -> ModelCardData:
    """Return what the hub reads; a base that is not on it is left out."""
    model, task = run.provenance.model, printable(run.provenance.task)
    base = model if _HUB_NAME.fullmatch(model) and not run.provenance.local_model else None
    return ModelCardData(
        base_model=base,
        base_model_relation=("adapter" if adapter else "finetune") if base else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["equipoise", *([task] if task else []), *(["lora"] if adapter else [])],
        model_name=printable(run_name(run)),
    )


def _facts(run: RunFiles, adapter: Json) -> Iterator[tuple[str, str]]:
    """Yield how the weights were made, as far as it is known."""
    record = run.provenance
    lora = f"rank {adapter.get('r')}, alpha {adapter.get('lora_alpha')}" if adapter else ""
    script = [Path(word).name for word in record.command[1:2]]
    changed = " and changes to it" if record.git.dirty else ""
    facts = {
        "Base": record.model,
        "Identity of the base": record.hashes.get("model"),
        "Method": f"GRPO, {len(steps):,} steps" if (steps := run.history.get("step")) else "GRPO",
        "LoRA": lora,
        "Prompts": record.hashes.get("prompts"),
        "Seed": record.seed,
        "Engine": record.engine,
        "Command": shlex.join([*script, *record.command[2:]]),
        "Commit of Equipoise": f"{record.git.commit}{changed}" if record.git.commit else "",
    }
    for name, fact in facts.items():
        if fact not in (None, ""):
            yield name, str(fact)
