"""The machinery knows no task: none of the words that a task is made of occurs in it."""

import re
from pathlib import Path

import pytest

from equipoise.config.flags import single_tasks

EQUIPOISE = Path(__file__).resolve().parents[2] / "equipoise"
#: The one verb that is of one task: it measures the model that this task asks.
OF_A_TASK = ("calibrate.py", "calibrate_command.py")
FILES = sorted(
    path
    for kind in ("*.py", "*.j2", "*.js")
    for path in EQUIPOISE.rglob(kind)
    if path.name not in OF_A_TASK
)

#: What the tasks are about: as parts of any word, and as words or parts of a name_like_this.
PARTS = (
    "fairness|dispari|racial|demographic|invasive|vignette|clinic|severity|medication|rationale"
    "|pubmed|macro_f1|dharma|ahimsa|helpfulness|refusal_rate|healthcare|medqa|retriev|rewriter|corpus"
)
WHOLE = (
    "races?|gender|patients?|gini|abstracts?|confusion|ratings?|rego|S[0-3]|scopes|rag|query|queries"
    "|letters?|passages?|judges?|judged|judging"
)
WORDS = re.compile(f"{PARTS}|(?<![a-z])(?:{WHOLE})(?![a-z0-9])", re.IGNORECASE)
#: Line fragments that may hold such a word, and why.
JUSTIFIED = {
    "judge-client.md": "the page on asking another model, of any task",
    "measure how far a judge errs": "what help says of the verb of one task",
    "judge_failed": "NeMo Gym's name for a model of any task that was asked and failed",
    "judge_unparseable": "the same, where its answer could not be read",
    "judges, planners and generators": "what the chat client of any task may be asked as",
    "data_prep.rag.encoder": "the Hugging Face encoder, which any task may be handed",
    "query_model": "a key of the settings of the encoder",
    "passage_model": "a key of the settings of the encoder",
    "--query-gpu": "an option of nvidia-smi",
    "num_query_groups": "the same in a configuration of Megatron's",
    "grouped-query": "attention with fewer keys than queries, as the field calls it",
}


def lines() -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(EQUIPOISE.parent)}:{number}", line)
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    ]


def test_every_task_has_its_words() -> None:
    assert [task for task in single_tasks() if not WORDS.search(task)] == []


def test_no_word_of_a_task_occurs() -> None:
    offending = []
    for place, line in lines():
        rest = line
        for fragment in JUSTIFIED:
            rest = rest.replace(fragment, "")
        if WORDS.search(rest):
            offending.append(f"{place}: {line.strip()}")
    assert offending == []


@pytest.mark.parametrize("fragment", JUSTIFIED)
def test_every_exception_is_needed(fragment: str) -> None:
    assert any(fragment in line for _, line in lines())
