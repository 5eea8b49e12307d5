"""`equipoise audit`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from data_prep.answers import SOURCES, Source
from data_prep.answers.sheets import Published
from data_prep.files import hash_file, write_json, write_text
from data_prep.text_files import DataError
from equipoise.errors import UsageError
from equipoise.evaluate.answers import (
    CONFIDENCE,
    MARGIN,
    Audited,
    audit_answers,
)
from equipoise.evaluate.plan import NAMED
from equipoise.run.directory import usable_folder
from equipoise.terminal.console import Reporter
from equipoise.terminal.options import option

SCHEMA = 1
JSON_FILE, PAGE_FILE = "audit.json", "audit.html"
#: How many unread answers are told one by one.
_UNREAD_SHOWN = 5

_SOURCES = "\n".join(
    f"{name}: {source.about.title}, licence: {source.about.licence}; {source.about.where}"
    for name, source in SOURCES.items()
)

#: Each answerer's files by its name.
Entries = Mapping[str, tuple[Path, ...]]


@dataclass(frozen=True, slots=True)
class AnswersOptions:
    """Audit answers that models, and people, gave to counterfactual variants.

    They are read from files that others have published: for each pair of variants whether one side
    is favoured, and whether answers flip more often than they do where nothing that matters was
    changed. No model is asked.

    Examples:
        equipoise audit medperturb data.csv
        equipoise audit amqa AMQA_Benchmark_Answer_*_no_cot.jsonl --output-dir results/answers/amqa
        equipoise audit amqa gpt=FILE,SECOND    # a second file of a model is a yardstick of it
    """

    source: Annotated[str, Positional, option(_SOURCES, "SOURCE")]
    files: Annotated[
        tuple[str, ...], Positional, option("FILE, NAME=FILE, NAME=FILE,SECOND", "FILE")
    ]
    output_dir: Annotated[
        Path | None,
        option(f"where {JSON_FILE} and {PAGE_FILE} go (default: results/answers/SOURCE)", "DIR"),
    ] = None
    dry_run: Annotated[bool, option("show what is found, and write nothing")] = False


def run(options: AnswersOptions, reporter: Reporter) -> None:
    """Audit. Raises `EquipoiseError`."""
    if options.source not in SOURCES:
        raise UsageError(
            "answers.unknown-source",
            f"there is no source {options.source}",
            f"Take {' or '.join(SOURCES)}.",
        )
    source = SOURCES[options.source]
    if not options.files:
        raise UsageError("answers.no-file", "name a file at least", f"Get {source.about.where}.")
    entries = entries_of(options.files, source)
    folder = options.output_dir or Path("results/answers") / options.source
    if not options.dry_run:
        usable_folder(folder, "--output-dir")
    try:
        published = source.read(entries)
    except DataError as error:
        raise UsageError(error.code, str(error), f"Get {source.about.where}.") from None
    audited = audit_answers(published)
    content = content_of(options.source, source, entries, published, audited)
    # matplotlib, which the page brings, takes a second to import.
    from equipoise.evaluate.answers_report import answers_page, print_audited

    print_audited(audited, content, reporter, PAGE_FILE)
    if options.dry_run:
        return
    write_json(folder / JSON_FILE, content)
    write_text(folder / PAGE_FILE, answers_page(audited, content))
    reporter.say(f"\naudit: {folder / PAGE_FILE}\n       {folder / JSON_FILE}")


def entries_of(words: Sequence[str], source: Source) -> dict[str, tuple[Path, ...]]:
    """Read `FILE` and `NAME=FILE,SECOND`. Raises `UsageError` for two of one name, and no file."""
    entries: dict[str, tuple[Path, ...]] = {}
    for word in words:
        named = NAMED.fullmatch(word)
        label, files = named.groups() if named else ("", word)
        paths = tuple(Path(part) for part in files.split(",") if part) or (Path(files),)
        if missing := [path for path in paths if not path.is_file()]:
            raise UsageError(
                "answers.missing-file",
                f"there is no file {missing[0]}",
                f"Get {source.about.where}.",
            )
        name = label or paths[0].stem.removeprefix(source.own_name)
        if name in entries:
            raise UsageError(
                "answers.repeated-name",
                f"two files are called {name}",
                "Give each a name of its own: NAME=FILE.",
            )
        entries[name] = paths
    return entries


def content_of(
    name: str, source: Source, entries: Entries, published: Published, audited: Audited
) -> dict[str, Any]:
    """The content of audit.json."""
    about = source.about
    unread = published.unread
    notes = list(published.notes)
    if unread:
        examples = "; ".join(unread[:_UNREAD_SHOWN])
        notes.append(f"{len(unread):,} answers could not be read and count as missing: {examples}")
    return {
        "schema": SCHEMA,
        "source": name,
        **asdict(about),
        "files": {str(path): hash_file(path) for paths in entries.values() for path in paths},
        "equipoise": version("equipoise"),
        "made": f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S %z}",
        "answerers": list(dict.fromkeys(sheet.answerer for sheet in published.sheets)),
        "items": max(len(sheet.items) for sheet in published.sheets),
        "confidence": CONFIDENCE,
        "margin": MARGIN,
        "unread": list(unread),
        "notes": notes,
        "rates": [asdict(rate) for rate in audited.rates],
        "compared": [asdict(comparison) for comparison in audited.compared],
        "readings": [asdict(reading) for reading in audited.readings],
        "flipped": [
            {key: value for key, value in asdict(item).items() if key != "texts"}
            for group in audited.flipped
            for item in group.items
        ],
    }
