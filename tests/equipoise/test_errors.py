from equipoise.errors import EquipoiseError, UsageError


def test_an_error_says_what_is_wrong_and_what_to_do():
    assert str(EquipoiseError("the disk is full", "Free some space.")) == (
        "the disk is full\nFree some space."
    )


def test_an_error_without_remedy_is_its_message():
    assert str(EquipoiseError("the disk is full", "")) == "the disk is full"


def test_exit_codes():
    assert (EquipoiseError.exit_code, UsageError.exit_code) == (1, 2)
