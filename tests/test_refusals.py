from tests.refusals import FILE, FORM, described, sites


def test_every_refusal_has_a_code() -> None:
    assert [site.place for site in sites() if not FORM.fullmatch(site.code)] == []


def test_a_code_has_one_message() -> None:
    messages: dict[str, tuple[str, ...]] = {}
    assert [s for s in sites() if messages.setdefault(s.code, s.texts) != s.texts] == []


def test_messages_are_as_the_file_has_them() -> None:
    assert described() == FILE.read_text(), "`python -m tests.refusals` writes the file anew"
