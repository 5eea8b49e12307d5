"""The judge's side: what it is asked, how its answers are read, what injections come to."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from environments.base import Failure
from environments.chat import ChatReply, Source, quote
from environments.dharma import DharmaEnvironment, DharmaSettings
from environments.dharma.judge import (
    SHIPPED,
    SHIPPED_FILE,
    ModelJudge,
    PromptLabel,
    Ratings,
    label_request,
    parse_answer,
    rate_request,
    read_rubric,
)
from tests.environments.dharma.samples import PERFECT, exchange
from tests.environments.models import Scripted
from tests.refusals import refusal

ANSWER = json.dumps(PERFECT)


def changed(**changes):
    return json.dumps(PERFECT | changes)


@pytest.mark.parametrize(
    "text",
    [
        ANSWER.replace('"clarity": 1.0, ', ""),
        ANSWER.replace('"clarity": 1.0', '"clarity": 1e999'),
        *map(json.dumps, (PERFECT | {"clarity": value} for value in (1.1, -0.1, "1", True, None))),
        changed(overall=1.0),
        changed(response_scope="S4"),
        changed(refused=0),
    ],
    ids=lambda text: text[:40],
)
def test_what_is_not_of_the_schema_is_a_failure(text):
    assert parse_answer(ANSWER.replace("1.0", "1"), Ratings) == Ratings.model_validate(PERFECT)
    assert isinstance(parse_answer(text, Ratings), Failure)


@given(st.text(max_size=200))
def test_no_text_raises(text):
    assert isinstance(parse_answer(text, PromptLabel), Failure | PromptLabel)


def test_all_that_is_judged_is_quoted():
    """Hostile text is tested for all requests in tests/environments/chat."""
    system, user = (m["content"] for m in rate_request(exchange("What?", "Rest.")).messages)
    prompt = f"The prompt, of scope S0 and urgency tier B:\n{quote('What?')}"
    assert user == f"{prompt}\n\nThe response to rate:\n{quote('Rest.')}"
    assert system == SHIPPED.rate_prompt
    system, user = (m["content"] for m in label_request("What?").messages)
    assert user == f"The prompt:\n{quote('What?')}"
    assert system == SHIPPED.label_prompt
    assert "<text-...>" in SHIPPED.rate_prompt and "<text-...>" in SHIPPED.label_prompt


@pytest.mark.parametrize(
    "reply", [ChatReply(None, Failure("server_error", "HTTP 500")), changed(clarity=2)], ids=str
)
def test_what_failed_is_no_number(reply):
    judge = ModelJudge(Scripted(lambda _: reply))
    found = judge.rate([exchange("p", "r")])
    assert isinstance(found[0], Failure)
    assert found[0].text.startswith("judge: ")


def test_an_answer_has_the_source_of_its_reply_which_it_cannot_state_itself():
    source = Source("judge-2", "fp_1")
    judge = ModelJudge(Scripted(lambda _: ChatReply(ANSWER, cached=True, source=source)))
    (rated,) = judge.rate([exchange("p", "r")])
    assert rated.source == source
    assert rated.model_dump() == json.loads(ANSWER)
    forged = changed(_source={"model": "another"})
    (refused,) = ModelJudge(Scripted(lambda _: forged)).rate([exchange("p", "r")])
    assert isinstance(refused, Failure)


MODEL = {"model_name": "some/model"}


def own(tmp_path, before, after):
    path = tmp_path / "mine.yaml"
    path.write_text(SHIPPED_FILE.read_text().replace(before, after))
    return path


def test_a_judge_is_told_the_words_of_the_file_and_provenance_tells_them_apart(tmp_path):
    path = own(tmp_path, "clarity: easy to understand", "clarity: a child of ten understands it")
    settings = DharmaSettings.model_validate({"judge": MODEL, "rubric": path})
    environment, model = DharmaEnvironment(settings), Scripted(lambda _: ANSWER)
    environment.set_chat_model(model)
    environment._judging().rate([exchange("What helps?", "Rest.")])
    told = model.requests[0].messages[0]["content"]
    assert "- clarity: a child of ten understands it" in told
    plain = DharmaEnvironment(DharmaSettings.model_validate({"judge": MODEL}))
    plain.set_chat_model(model)
    changed = {k for k, v in plain.sources().items() if environment.sources()[k] != v}
    assert changed == {"judge/rate_prompt"}


@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [
        ("clarity:", "clarty:", ["numbers.clarty", "did you mean clarity?", "numbers.clarity"]),
        ("  S3: ", "  S4: ", ["scopes.S3", "scopes.S4"]),
        ("A: an emergency is possible, care is needed now", "A: 3", ["tiers.A"]),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_key(tmp_path, before, after, keys):
    with refusal("yaml.invalid-keys", *keys):
        read_rubric(own(tmp_path, before, after))


def test_a_judge_that_is_no_model_has_no_rubric(tmp_path):
    with pytest.raises(ValidationError, match="rubric is for a judge that is a model"):
        DharmaSettings.model_validate({"rubric": own(tmp_path, "", "")})
