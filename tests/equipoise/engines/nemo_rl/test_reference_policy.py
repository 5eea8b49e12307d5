"""The reference policy of a resumed run: built first, loaded afterwards, and compared."""

from types import SimpleNamespace

import pytest
import torch

from data_prep.files import read_json, write_json
from equipoise.engines.nemo_rl.reference_policy import check_reference, digest_function
from equipoise.errors import EquipoiseError


@pytest.fixture
def provenance(tmp_path):
    path = tmp_path / "provenance.json"
    write_json(path, {"seconds": {}})
    return path


def worker(**state):
    return SimpleNamespace(reference_model_state_dict=state)


def test_a_digest_is_of_the_weights_that_have_an_effect():
    digest = digest_function()
    base, lora_b = torch.arange(6.0).reshape(2, 3), torch.zeros(3, 1)
    first = digest(
        worker(**{"a.weight": base, "a.lora_A.weight": torch.ones(1), "a.lora_B": lora_b})
    )
    fresh = digest(
        worker(**{"a.weight": base, "a.lora_A.weight": torch.zeros(1), "a.lora_B": lora_b})
    )
    moved = digest(
        worker(**{"a.weight": base, "a.lora_A.weight": torch.ones(1), "a.lora_B": lora_b + 1})
    )
    assert first == fresh != moved
    assert digest(worker(x=base.to(torch.bfloat16))) != digest(worker(x=base))
    assert digest(worker(x=torch.tensor(1.0))) != digest(worker(y=torch.tensor(1.0)))
    assert digest(SimpleNamespace(reference_model_state_dict=None)) is None
    assert digest(SimpleNamespace()) is None


def test_a_first_start_is_remembered_and_another_reference_is_refused(provenance):
    check_reference(["a", "b"], provenance)
    assert read_json(provenance)["reference_policy"] == ["a", "b"]
    check_reference(["a", "b"], provenance)
    with pytest.raises(EquipoiseError, match="not the one that this run began with"):
        check_reference(["a", "c"], provenance)


def test_shares_of_other_numbers_of_workers_cannot_be_compared(provenance):
    check_reference(["a", "b"], provenance)
    check_reference(["c"], provenance)
    assert read_json(provenance)["reference_policy"] == ["a", "b"]
