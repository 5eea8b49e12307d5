"""The judge's rubric: the shipped one, a user's own, and what is refused."""

import hashlib
from pathlib import Path

import pytest
from pydantic import ValidationError

from environments.chat import ChatReply, ChatRequest
from environments.dharma import DharmaEnvironment, DharmaSettings
from environments.dharma.judge import SHIPPED, SHIPPED_FILE, read_rubric
from environments.dharma.ratings import PromptLabel, Ratings
from environments.yaml_file import YamlFileError
from tests.environments.dharma.samples import exchange

MODEL = {"model_name": "some/model"}


class Asked:
    """A model that keeps what it is told."""

    identity = "asked"

    def __init__(self) -> None:
        self.told: list[str] = []

    def ask(self, requests: list[ChatRequest]) -> list[ChatReply]:
        self.told += [request.messages[0]["content"] for request in requests]
        return [ChatReply("{}") for _ in requests]


def own(tmp_path: Path, before: str, after: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(SHIPPED_FILE.read_text().replace(before, after))
    return path


def test_the_shipped_texts_are_those_that_caches_were_filled_with() -> None:
    texts = (SHIPPED.label_prompt, SHIPPED.rate_prompt)
    assert [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts] == [
        "4088ac695fed87d3",
        "cfbe9706ecf5bdd5",
    ]


def test_it_has_words_for_everything_that_is_answered() -> None:
    assert {*dict(SHIPPED.numbers), *dict(SHIPPED.findings)} == set(Ratings.model_fields)
    assert PromptLabel(tier="A", scope="S3")
    assert list(dict(SHIPPED.scopes)) == ["S0", "S1", "S2", "S3"]
    assert list(dict(SHIPPED.tiers)) == ["A", "B", "C"]


def test_a_judge_is_told_the_words_of_the_file_and_provenance_tells_them_apart(
    tmp_path: Path,
) -> None:
    path = own(tmp_path, "clarity: easy to understand", "clarity: a child of ten understands it")
    settings = DharmaSettings.model_validate({"judge": MODEL, "rubric": path})
    environment, model = DharmaEnvironment(settings), Asked()
    environment.set_chat_model(model)
    environment._judging().rate([exchange("What helps?", "Rest.")])
    assert "- clarity: a child of ten understands it" in model.told[0]
    plain = DharmaEnvironment(DharmaSettings.model_validate({"judge": MODEL}))
    plain.set_chat_model(Asked())
    changed = {k for k, v in plain.sources().items() if environment.sources()[k] != v}
    assert changed == {"judge/rate_prompt"}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("clarity:", "clarty:", "numbers.clarty: unknown key, did you mean clarity?"),
        ("clarity:", "clarty:", "numbers.clarity: is missing"),
        ("  S3: ", "  S4: ", "scopes.S3: is missing"),
        ("A: an emergency is possible, care is needed now", "A: 3", "tiers.A: should be a valid"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_key(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    with pytest.raises(YamlFileError) as refused:
        read_rubric(own(tmp_path, before, after))
    assert f"    {said}" in str(refused.value)


def test_a_judge_that_is_no_model_has_no_rubric(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="rubric is for a judge that is a model"):
        DharmaSettings.model_validate({"rubric": own(tmp_path, "", "")})


@pytest.mark.parametrize(
    "said", ["turns sound advice round", "half of the advice is half", "sends nowhere"]
)
def test_a_model_is_told_what_the_scripted_judge_sees(said):
    """That negated advice is none, half of it half, and that "do not call 911" sends nowhere."""
    assert said in " ".join(SHIPPED.rate_prompt.split())
