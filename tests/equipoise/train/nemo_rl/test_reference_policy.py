"""The reference policy of a resumed run: built first, loaded afterwards, and compared."""

import io
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import pytest
import torch

from equipoise.files.disk import read_json
from equipoise.run.ledger import Ledger
from equipoise.train.nemo_rl import reference_policy
from equipoise.train.nemo_rl.reference_policy import (
    check_reference,
    digest_function,
    policy_with_first_reference,
)
from tests.equipoise.train.nemo_rl.stand_ins import Policy
from tests.refusals import refusal

#: As a NeMo-RL without the key `_v2` has it, too.
DTENSOR = {"dtensor_cfg": {"enabled": True}}


@pytest.fixture
def provenance(tmp_path):
    path = tmp_path / "provenance.json"
    Ledger(path).create({"seconds": {}})
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


def test_megatron_keeps_its_reference_under_another_name():
    digest = digest_function()
    state = {"linear_qkv.weight": torch.arange(6.0), "linear_qkv._extra_state": io.BytesIO(b"a")}
    first = digest(SimpleNamespace(reference_state_dict=state))
    again = digest(SimpleNamespace(reference_state_dict=state | {"x._extra_state": None}))
    moved = {"linear_qkv.weight": torch.arange(1.0, 7.0)}
    other = digest(SimpleNamespace(reference_state_dict=moved))
    assert None is not first == again != other is not None
    assert digest(SimpleNamespace(reference_state_dict={})) is None


@pytest.mark.parametrize(("wanted", "kept"), [(True, None), (True, "a"), (False, None)])
def test_a_reference_that_cannot_be_found_ends_the_run_at_its_start(
    provenance, monkeypatch, wanted, kept
):
    monkeypatch.setattr(reference_policy, "_on_workers", lambda policy, method, **words: [kept])
    build = policy_with_first_reference(lambda *args, **words: "policy", Ledger(provenance))
    config = {"dtensor_cfg": {"enabled": False}}
    lost = refusal("nemo-rl.unknown-reference")
    with lost if wanted and kept is None else nullcontext():
        assert build(config=config, init_reference_model=wanted) == "policy"


def test_a_first_start_is_remembered_and_another_reference_is_refused(provenance):
    check_reference(["a", "b"], Ledger(provenance))
    assert read_json(provenance)["reference_policy"] == ["a", "b"]
    check_reference(["a", "b"], Ledger(provenance))
    with refusal("resume.other-reference"):
        check_reference(["a", "c"], Ledger(provenance))


def test_shares_of_other_numbers_of_workers_cannot_be_compared(provenance):
    check_reference(["a", "b"], Ledger(provenance))
    check_reference(["c"], Ledger(provenance))
    assert read_json(provenance)["reference_policy"] == ["a", "b"]


class TestAResume:
    """On workers that load a checkpoint before they copy the reference."""

    @pytest.fixture(autouse=True)
    def ray(self, monkeypatch):
        """Whose objects are their own references."""
        fake = ModuleType("ray")
        fake.get = list
        monkeypatch.setitem(sys.modules, "ray", fake)

    @pytest.fixture
    def trained(self, tmp_path, monkeypatch):
        """A checkpoint, named as NeMo-RL names it: from the driver's working directory."""
        monkeypatch.chdir(tmp_path)
        torch.save(torch.ones(2), "weights")
        return {"weights_path": "weights", "optimizer_path": "optimizer"}

    def test_the_stand_in_moves_the_reference_as_nemo_rl_does(self, trained):
        moved = Policy("cluster", DTENSOR, "tokenizer", **trained).worker
        assert moved.reference_model_state_dict["weights"].tolist() == [1.0, 1.0]

    def test_the_reference_is_that_of_the_first_start(self, trained, provenance, tmp_path):
        build = policy_with_first_reference(Policy, Ledger(provenance))
        words = {"cluster": "cluster", "config": DTENSOR, "tokenizer": "tokenizer"}
        first = build(**words).worker
        assert first.weights.tolist() == [0.0, 0.0]
        resumed = build(**words, **trained).worker
        assert resumed.weights.tolist() == [1.0, 1.0]
        assert resumed.optimizer_path == str(tmp_path / "optimizer")
        assert resumed.reference_model_state_dict["weights"].tolist() == [0.0, 0.0]

    def test_a_reference_that_moved_all_the_same_is_refused(self, trained, provenance):
        build = policy_with_first_reference(Policy, Ledger(provenance))
        words = {"cluster": "cluster", "config": DTENSOR, "tokenizer": "tokenizer"}
        build(**words)
        megatron = {"dtensor_cfg": {"enabled": False}}
        with refusal("resume.other-reference"):
            build(**words | {"config": megatron}, **trained)
