"""What happens at the end of a step, before anything of it is kept."""

from functools import partial
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from equipoise.engines.local.callbacks import StopCallback
from equipoise.run.ownership import LostRunError, Owner, confirm_owner
from equipoise.stages.failures import FailureMonitor


def end_step(root: Path, *, stop: bool) -> TrainerControl:
    control = TrainerControl()
    callback = StopCallback(FailureMonitor(0.1, 5), lambda: stop, partial(confirm_owner, root))
    callback.on_step_end(TrainingArguments(str(root), use_cpu=True), TrainerState(), control)
    return control


def test_a_request_saves_and_stops(tmp_path: Path):
    assert not end_step(tmp_path, stop=False).should_save
    control = end_step(tmp_path, stop=True)
    assert (control.should_save, control.should_training_stop) == (True, True)


def test_a_run_that_another_process_took_over_keeps_nothing_of_the_step(tmp_path: Path):
    owner = Owner(token="x", pid=7, host="there", since="now", command="recipe")
    (tmp_path / "owner.json").write_text(owner.model_dump_json())
    with pytest.raises(LostRunError, match="process 7 on there"):
        end_step(tmp_path, stop=True)
