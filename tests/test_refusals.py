from tests.refusals import FILE, FORM, described, refusals


def test_every_refusal_has_a_code() -> None:
    assert [r.place for r in refusals() if not FORM.fullmatch(r.code)] == []


def test_a_code_has_one_message() -> None:
    messages: dict[str, tuple[str, ...]] = {}
    assert [r for r in refusals() if messages.setdefault(r.code, r.texts) != r.texts] == []


def test_messages_are_as_the_file_has_them() -> None:
    assert described() == FILE.read_text(), "`python -m tests.refusals` writes the file anew"
