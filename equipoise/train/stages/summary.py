"""The tables at the end of a stage: metrics with intervals, then before against after."""

from collections.abc import Mapping
from typing import Any

from environments.base import REWARD
from environments.presentation import Chart, Words
from equipoise.report.run_files import read_presentation
from equipoise.report.words import (
    NOISE_OFF,
    allowed_change,
    is_outside,
    key_name,
    metric_name,
    not_beaten,
    percent,
    plain_name,
    section_title,
)
from equipoise.report.words import p_value as reported_p
from equipoise.statistics.trivial import GREEDY
from equipoise.terminal.console import Reporter
from equipoise.terminal.layout import Column

Figure = Mapping[str, Any]

#: What a narrow terminal does without is in the verdict.
_DIFFERENCE = (
    *(Column("change", spare=1), Column("interval", spare=2), Column("p", spare=3)),
    Column("verdict", folds=True),
)


def print_evaluation(reporter: Reporter, evaluation: Mapping[str, Any]) -> None:
    """Metrics of one stage, then the breakdowns of which the task wants a chart."""
    presentation = read_presentation(evaluation)
    confidence = f"{evaluation['confidence']:.0%} interval"
    metrics = evaluation["metrics"]
    columns = (
        Column("metric", folds=True),
        *(Column("value"), Column(confidence), Column("noise floor", spare=1)),
        Column("p", spare=2),
    )
    rows = [
        (
            metric_name(name, presentation.words),
            number(m["value"]),
            interval(m),
            number(m.get("floor")),
            p_value(m.get("p")),
        )
        for name, m in metrics.items()
    ]
    width = len(columns) if any("floor" in m for m in metrics.values()) else 3
    reporter.table(
        f"{evaluation['n_rollouts']:,} rollouts of {evaluation['n_prompts']:,} prompts, "
        f"split {evaluation['split']}",
        columns[:width],
        [row[:width] for row in rows],
        all_in="evaluation.json",
    )
    if evaluation["n_failed"]:
        reporter.warn(f"{evaluation['n_failed']:,} rollouts could not be scored")
    objective = evaluation.get("objective", REWARD)
    if objective in metrics and metrics[objective]["value"] is None:
        reporter.warn(
            f"the objective, {metric_name(objective, presentation.words)}, is not known: too few "
            "replies could be read or scored"
        )
    for chart in presentation.charts:
        section = evaluation.get(chart.breakdown)
        if section and all(chart.metric in figures for figures in section.values()):
            _print_breakdown(reporter, chart, section, presentation.words, confidence)


def _print_breakdown(
    reporter: Reporter,
    chart: Chart,
    section: Mapping[str, Mapping[str, Figure]],
    words: Mapping[str, Words],
    confidence: str,
) -> None:
    """The charted metric with its interval, and what else is measured of every key."""
    side_metrics = [name for name in next(iter(section.values())) if name != chart.metric]
    columns = (
        Column(key_name(chart.breakdown), folds=True),
        *(Column(metric_name(chart.metric, words)), Column(confidence, spare=1)),
        *(Column(metric_name(name, words), spare=n) for n, name in enumerate(side_metrics, 2)),
    )
    rows = [
        (
            key,
            number(figures[chart.metric]["value"]),
            interval(figures[chart.metric]),
            *(number(figures[name]["value"]) for name in side_metrics),
        )
        for key, figures in section.items()
    ]
    title = f"{section_title(chart.breakdown, words)}: {chart.axis}"
    reporter.table(title, columns, rows, all_in="evaluation.json")


def print_comparison(
    reporter: Reporter,
    comparison: Mapping[str, Any],
    words: Mapping[str, Words],
    *,
    title: str = "Before and after, on the same items; p after Holm's correction",
    stages: tuple[str, str] = ("before", "after"),
    all_in: str = "report.html",
) -> None:
    """Before against after with the verdict, metric by metric; then guards that did not hold."""
    rows = [
        (
            metric_name(name, words),
            number(m["before"]),
            number(m["after"]),
            number(m["difference"], signed=True),
            interval(m, signed=True),
            p_value(m["p_holm"]),
            _verdict(m),
        )
        for name, m in comparison["metrics"].items()
    ]
    reporter.table(
        title,
        (
            Column("metric", folds=True),
            *(Column(stage) for stage in stages),
            *_DIFFERENCE,
        ),
        rows,
        all_in=all_in,
    )
    for name, m in comparison["metrics"].items():
        if cut := m.get("excess_cut"):
            cut = {key: 100 * value for key, value in cut.items()}
            reporter.say(
                f"{metric_name(name, words)}, excess over noise: cut by {cut['value']:.1f}% "
                f"({cut['low']:.1f} to {cut['high']:.1f})"
            )
    powers = {n: power for n, m in comparison["metrics"].items() if (power := _power(m))}
    if powers:
        by_guard = ", ".join(
            f"{metric_name(name, words)} {power}" for name, power in powers.items()
        )
        reporter.say(
            f"how often a model in which nothing changed would keep each guard: {by_guard}"
        )
    for status in ("lost", "not shown"):
        for name, m in comparison["metrics"].items():
            if m.get("guard") == status:
                reporter.warn(f"guard {status}: {metric_name(name, words)}{_margin(m)}")


def _verdict(figure: Figure) -> str:
    guard = figure.get("guard")
    return f"{figure['verdict']}; guard {guard}" if guard else str(figure["verdict"])


def _power(figure: Figure) -> str:
    power = (figure.get("margin") or {}).get("power")  # which older runs lack
    return "" if power is None else percent(power)


def _margin(figure: Figure) -> str:
    """The interval that decided on a guard, beside its margin."""
    margin = figure["margin"]
    scale, unit = (100, "%") if margin["relative"] else (1, "")
    bounds = {key: None if margin[key] is None else margin[key] * scale for key in ("low", "high")}
    change = interval(bounds, signed=True)
    clause = "is not known" if change == "-" else f"is {change}{unit}"
    return f": the change {clause}, where {allowed_change(margin)} is allowed"


def print_modes(reporter: Reporter, modes: Mapping[str, Any], words: Mapping[str, Words]) -> None:
    """The modes side by side, then the pairs of them."""
    confidence = f"{modes['confidence']:.0%} interval"
    metrics = list(dict.fromkeys(name for figures in modes["modes"].values() for name in figures))
    charted = metrics[:2]
    columns = [
        column
        for rank, name in enumerate(charted, 1)
        for column in (Column(metric_name(name, words)), Column(confidence, spare=rank))
    ]
    reporter.table(
        "The same prompts in other ways",
        (Column("mode", folds=True), *columns),
        [
            (mode, *(cell for n in charted for cell in (number(f[n]["value"]), interval(f[n]))))
            for mode, f in modes["modes"].items()
        ],
        all_in="report.html",
    )
    reporter.table(
        f"{metric_name(modes['metric'], words)}, pair by pair; p after Holm's correction",
        (Column("first", folds=True), Column("second", folds=True), *_DIFFERENCE),
        [
            (
                *pair["modes"],
                number(pair["difference"], signed=True),
                interval(pair, signed=True),
                p_value(pair["p_holm"]),
                pair["verdict"],
            )
            for pair in modes["comparisons"]
        ],
        all_in="report.html",
    )
    for note in modes["notes"]:
        reporter.warn(note)


def print_probe(reporter: Reporter, probe: Mapping[str, Any], words: Mapping[str, Words]) -> None:
    """Print policies without skill, the best constant reply, and the untrained model."""
    objective, metric = probe["objective"], probe["metric"]
    name_of_objective = metric_name(objective, words)
    confidence = f"{probe['confidence']:.0%} interval"
    reporter.table(
        "Policies without skill, and the untrained model",
        (
            Column("policy", folds=True),
            *(Column(name_of_objective), Column(confidence, spare=1)),
            *(Column(metric_name(metric, words)), Column(confidence, spare=2)),
        ),
        [
            (
                plain_name(name),
                *(
                    cell
                    for name in (objective, metric)
                    for cell in (
                        number(policy["metrics"][name]["value"]),
                        interval(policy["metrics"][name]),
                    )
                ),
            )
            for name, policy in probe["policies"].items()
        ],
        all_in="probe/probe.json",
    )
    constant = probe["constants"]["constant"]
    reporter.say(
        f"best constant reply of {constant['tried']:,}, by {name_of_objective} on training "
        f"prompts: {constant['reply']!r}"
    )
    if probe["ahead"]:
        names = ", ".join(map(plain_name, probe["ahead"]))
        reporter.warn(
            f"before training {names} is better than the model in {name_of_objective}, and "
            "training may find that first: look at the reward, or show the model good replies "
            "(`equipoise cold-start`)"
        )


def print_trivial(
    reporter: Reporter, trivial: Mapping[str, Any], words: Mapping[str, Words]
) -> None:
    """The trained model against each policy without skill, with a warning where it does not win."""
    objective = trivial["objective"]
    label = metric_name(objective, words)
    trained = number(trivial["trained"][objective]["value"])
    likeliest = trivial.get("trained_greedy")  # which older runs lack

    def name_of(policy: str) -> str:
        if policy != GREEDY or not likeliest:
            return plain_name(policy)
        return f"{policy}; trained and greedy: {number(likeliest[objective]['value'])}"

    reporter.table(
        f"The trained model's {label}, {trained}, minus that of others; p after Holm's correction",
        (Column("policy", folds=True), Column(label), *_DIFFERENCE),
        [
            (
                name_of(name),
                number(policy["metrics"][objective]["value"]),
                number(against["difference"], signed=True),
                interval(against, signed=True),
                p_value(against["p_holm"]),
                against["verdict"],
            )
            for name, policy in trivial["policies"].items()
            if "against" in policy
            for against in [policy["against"][objective]]
        ],
        all_in="report.html",
    )
    if names := not_beaten(trivial):
        reporter.warn(f"the trained model is not shown to be better in {label} than: {names}")


def number(value: float | None, *, signed: bool = False) -> str:
    """Three decimals, more for a value that they would hide; a dash for what is not known."""
    if value is None:
        return "-"
    digits = 3 if value == 0 or abs(value) >= 0.0095 else 5
    return f"{value:{'+' if signed else ''}.{digits}f}"


def interval(figure: Figure, *, signed: bool = False) -> str:
    """Low and high end, with the estimate that they are of where that is not the value."""
    if figure.get("low") is None or figure.get("high") is None:
        return "-"
    bounds = f"{number(figure['low'], signed=signed)} to {number(figure['high'], signed=signed)}"
    if (estimate := figure.get("without_noise")) is not None:
        return f"{number(estimate, signed=signed)} ({bounds}) {NOISE_OFF}"
    outside = is_outside(figure.get("value"), figure["low"], figure["high"])
    return f"{bounds} {NOISE_OFF}" if outside else bounds


def p_value(p: float | None) -> str:
    """A p-value as the report writes it; a dash for what is not known."""
    return "-" if p is None else reported_p(p)
