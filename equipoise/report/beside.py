"""Results of files beside the evaluations: other modes, and policies without skill."""

from dataclasses import replace

from equipoise.report.document import Cell, Table, Tables
from equipoise.report.run_files import Json, RunFiles, as_list, as_object
from equipoise.report.tables import CHANGE, figure_cell, verdict_cells
from equipoise.report.words import (
    figure_with_interval,
    heading,
    level_of,
    number,
    plain_name,
    printable,
    read_estimate,
)
from equipoise.statistics.trivial import GREEDY

_UNDESCRIBED = "a way of the task's own, which does not say what it does"


def mode_sections(run: RunFiles) -> tuple[Tables, ...]:
    """The task's own modes of modes.json side by side; nothing for a task without any."""
    if "modes" not in run.modes:
        return ()
    means = {name: number(mean) for name, mean in as_object(run.modes.get("seconds")).items()}
    times = [f"{plain_name(name)} {1000 * s:.2g} ms" for name, s in means.items() if s is not None]
    made_with = as_object(run.modes.get("sources")).items()
    sources = [printable(f"{plain_name(name)} {source}") for name, source in made_with if source]
    notes = [
        "The same prompts in every mode. Holm's correction is over all pairs.",
        f"Mean time per prompt: {', '.join(times)}." if times else "",
        f"Made with: {', '.join(sources)}." if sources else "",
        *(printable(note, 500) for note in as_list(run.modes.get("notes"))),
    ]
    rows = []
    for pair in map(as_object, as_list(run.modes.get("comparisons"))):
        names = (plain_name(str(mode)) for mode in as_list(pair.get("modes")))
        rows.append((Cell(printable(" \N{RIGHTWARDS ARROW} ".join(names))), *verdict_cells(pair)))
    change = f"Change in {run.name_of(str(run.modes.get('metric', '')))}"
    pairs = Table(("Pair", change, *CHANGE[1:]), tuple(rows), level_of(run.modes))
    tables = (("", _mode_table(run)), ("", pairs))
    return (Tables("Modes side by side", "modes", " ".join(filter(None, notes)), tables),)


def _mode_table(run: RunFiles) -> Table:
    modes = {
        name: as_object(figures) for name, figures in as_object(run.modes.get("modes")).items()
    }
    metrics = dict.fromkeys(
        name for figures in modes.values() for name in figures if _has_value(figures[name])
    )
    rows = tuple(
        (Cell(plain_name(mode)), *(_without_noise(figures.get(name)) for name in metrics))
        for mode, figures in modes.items()
    )
    columns = ("Mode", *(heading(run.name_of(name)) for name in metrics))
    return Table(columns, rows, level_of(run.modes))


def _has_value(figure: object) -> bool:
    return (estimate := read_estimate(figure)) is not None and estimate.value is not None


def _without_noise(figure: object) -> Cell:
    return replace(figure_cell(read_estimate(figure)), noise="")


# --- policies without skill ----------------------------------------------------------------------


def probe_sections(run: RunFiles) -> tuple[Tables, ...]:
    """Tabulate what policies without skill earn, beside the trained model if there is one."""
    policies = as_object(run.probe.get("policies"))
    if not policies:
        return ()
    metric = str(run.probe.get("metric", ""))
    note = "What can be had for nothing, on the same prompts."
    constant = as_object(as_object(run.probe.get("constants")).get("constant"))
    if reply := constant.get("reply"):
        tried = number(constant.get("tried"))
        searched = f" of {tried:,.0f}" if tried else ""
        by = f"by {run.name_of(run.objective)} on training prompts"
        note += f" Best constant reply{searched}, {by}: {printable(reply, 500)}"
    differs = ("Trained minus it", *CHANGE[1:]) if run.trivial else ()
    figures = run.objective, metric
    columns = ("Policy", *(heading(run.name_of(name)) for name in figures), *differs)
    rows = tuple(_policy_row(run, name, as_object(p), figures) for name, p in policies.items())
    table = Table(columns, rows, level_of(run.probe) or level_of(run.modes))
    return (Tables("Policies without skill", "policies", note.strip(), (("", table),)),)


def _policy_row(
    run: RunFiles, name: str, policy: Json, figures: tuple[str, str]
) -> tuple[Cell, ...]:
    metrics, against = as_object(policy.get("metrics")), as_object(policy.get("against"))
    note = printable(policy.get("note") or run.note_of(name) or _UNDESCRIBED)
    # A run without the trained model's likeliest replies compares greedy with nothing.
    verdict = verdict_cells(as_object(against.get(run.objective))) if run.trivial else ()
    if against and name == GREEDY and (trained := as_object(run.trivial.get("trained_greedy"))):
        figure = trained.get(run.objective)
        result = "could not be measured"
        if _has_value(figure):
            result = f"has {figure_with_interval(read_estimate(figure))}"
        compared = f"compared with the trained model at temperature 0, which {result}"
        verdict = (*verdict[:-1], replace(verdict[-1], note=compared))
    return (
        Cell(plain_name(name), note=note),
        *(figure_cell(read_estimate(metrics.get(figure))) for figure in figures),
        *verdict,
    )
