"""Whole sets in the Single Controller: slow, failed, lost, stale and restarted groups."""

import asyncio
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from data_prep.records import write_prompts
from equipoise.train.nemo_rl import set_sampler
from tests.equipoise.train.nemo_rl.single_controller import (
    LOOK,
    Account,
    Characters,
    Scenario,
    in_virtual_time,
    records,
)

#: Far more than any of these trainings takes, in virtual seconds.
LONG = 600


@pytest.fixture
def samplers(tmp_path, monkeypatch):
    """What makes the sampler of a scenario, as NeMo-RL's `create_sampler` does."""
    monkeypatch.setattr(set_sampler, "_tokenizer_of", lambda _: Characters())
    monkeypatch.setattr(set_sampler, "_LOOK", LOOK)
    monkeypatch.setattr(set_sampler, "_column", lambda name, values: {name: tensor(values)})

    def samplers(scenario, account, cls=set_sampler.WholeSetSampler):
        path = tmp_path / f"{scenario.sets}-{scenario.set_size}.jsonl"
        if not path.exists():
            write_prompts(path, records(scenario.sets, scenario.set_size), {})

        async def rewards_of(_actor, conversations, metadata):
            await asyncio.sleep(0.01)
            return account.score(conversations, metadata)

        monkeypatch.setattr(set_sampler, "rewards_of", rewards_of)

        settings = {
            "prompts": str(path),
            "tokenizer": {},
            "scoring_actor": "scoring",
            "set_size": scenario.set_size,
            "prompts_per_step": scenario.step_size,
            "max_staleness_versions": scenario.window,
        }

        def make(buffer, **changes):
            return cls(buffer, **(settings | changes))

        return make

    return samplers


def tensor(values):
    import torch

    return torch.tensor(values)


def train(scenario, samplers, **other):
    account = Account(scenario.set_size, scenario.window)
    work = scenario.train(samplers(scenario, account, **other), account)
    return account, in_virtual_time(work, LONG)


def train_all(seeds, samplers):
    """Return how many groups were evicted, and how many trained."""
    evicted = trained = 0
    for seed in seeds:
        scenario = Scenario.draw(seed)
        try:
            account, controllers = train(scenario, samplers)
        except BaseException as error:  # a deadlock of the loop, too
            raise AssertionError(scenario) from error
        assert len(account.trained) == scenario.steps * scenario.step_size, scenario
        evicted += sum(controller.evicted for controller in controllers)
        trained += len(account.trained)
    return evicted, trained


def test_sets_are_trained_whole_and_once_and_every_step_comes(samplers):
    evicted, trained = train_all(range(300), samplers)
    assert evicted > trained / 10, "the interleavings harm nothing"


@pytest.mark.deep
@pytest.mark.parametrize("part", range(20))
def test_ten_thousand_interleavings(part, samplers):
    train_all(range(part, 10_000, 20), samplers)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("most_in_flight", [1, 3, 50])
def test_nothing_is_evicted_where_nothing_fails(seed, most_in_flight, samplers):
    health = {"failing": 0, "lost": 0, "slow": 0, "restarts": (), "window": 1}
    scenario = replace(Scenario.draw(seed), **health, most_in_flight=most_in_flight)
    _, controllers = train(scenario, samplers)
    assert sum(controller.evicted for controller in controllers) == 0


class ByArrival(set_sampler.WholeSetSampler):
    """Takes groups as they come, as NeMo-RL's own samplers do."""

    def _whole_sets(self):
        return [[slot] for slot in self._fresh_slots()]


class Unscored(set_sampler.WholeSetSampler):
    """Trains on the rewards that rollouts had."""

    async def _score(self, batch, prompts):
        pass


class Patient(set_sampler.WholeSetSampler):
    """Waits for siblings for ever."""

    def _remains(self):
        return set()


class Stale(set_sampler.WholeSetSampler):
    """Takes groups of any age."""

    def _fresh_slots(self):
        return self._ready_slots()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (ByArrival, "part of a set"),
        (Unscored, "not scored by one call"),
        (Patient, "TimeoutError"),
        (Stale, "steps after its weights"),
    ],
)
def test_the_account_finds_a_sampler_at_fault(fault, error, samplers):
    def found(seed):
        try:
            train(replace(Scenario.draw(seed), set_size=2), samplers, cls=fault)
        except (AssertionError, TimeoutError) as found_fault:
            return repr(found_fault)
        return ""

    assert any(error in found(seed) for seed in range(50))


def test_prompts_with_the_same_tokens_are_refused(samplers, tmp_path):
    same = [replace(record, id=f"{n}") for n, record in enumerate(records(1, 1) * 2)]
    with pytest.raises(ValueError, match="prompts 0 and 1 have the same tokens"):
        set_sampler.PromptTable(same, Characters())


def test_a_group_of_other_prompts_is_refused():
    """A resumed run's buffer may be of a run with other prompts."""
    table = set_sampler.PromptTable(records(1, 1), Characters())
    with pytest.raises(ValueError, match="no training prompt of this run"):
        table.find(Characters()("another")["input_ids"][0])


def test_padding_does_not_hide_a_prompt():
    import torch

    table = set_sampler.PromptTable(records(2, 2), Characters())
    ids = Characters()("1:0?")["input_ids"][0]
    assert table.find(torch.cat([ids, torch.zeros(7, dtype=ids.dtype)])).record.id == "1-0"


def test_a_step_of_parts_of_sets_is_refused(samplers):
    scenario = replace(Scenario.draw(0), set_size=4, sets_per_step=1)
    make = samplers(scenario, Account(4, 1))
    with pytest.raises(ValueError, match="3 prompts a step are no whole sets of 4"):
        make(None, prompts_per_step=3)
