"""A Rego process: it keeps its limits, comes back after its end, and leaves nothing behind."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from threading import Thread

import psutil
import pytest

from environments.rego.process import Limits, ProcessEndedError, RegoProcess
from environments.rego.worker import RegoError
from tests.refusals import refusal

pytestmark = pytest.mark.deep

MODULE = """package p

import rego.v1

echo := input

# The larger the input, the longer it takes, or the more.
long if {
	r := numbers.range(1, input.n)
	some i in r
	some j in r
	i + j < 0
}

large := count(numbers.range(1, input.n))

bad := 1 / 0
"""
RULES = ["p.echo", "p.long", "p.large", "p.bad", "p.nothing"]
SMALL = Limits(cpu_seconds=0.5, memory_bytes=200 * 2**20)


@pytest.fixture
def process() -> Iterator[RegoProcess]:
    with closing(RegoProcess({"p.rego": MODULE}, RULES, SMALL)) as running:
        yield running


def pid(process: RegoProcess) -> int:
    assert process._child
    return process._child.pid


def is_alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_rule_is_asked(process):
    assert process.ask("p.echo", '{"a": [1, 0.1234567890123, "\\u00e4"]}')[0] == {
        "a": [1, 0.1234567890123, "ä"]
    }
    assert process.ask("p.large", '{"n": 10}')[0] == 10


OVER = {
    "seconds": ("p.long", '{"n": 100000}', "it takes more than 0.5 s of CPU time"),
    "memory": ("p.large", '{"n": 200000000}', "it takes more than 200 MiB of memory"),
}


@pytest.mark.parametrize(("rule", "given", "message"), OVER.values(), ids=OVER.keys())
def test_what_takes_too_much_is_no_answer_and_the_next_question_has_one(
    process, rule, given, message
):
    first = pid(process)
    with pytest.raises(RegoError, match=message):
        process.ask(rule, given)
    assert not is_alive(first)
    assert process.ask("p.echo", "1")[0] == 1
    assert pid(process) != first


def test_the_limit_of_time_is_for_each_question_alone(process):
    """Together they take longer, whatever the speed of the machine."""
    before = pid(process)
    asked = psutil.Process(before)
    while asked.cpu_times().user < 2 * SMALL.cpu_seconds:
        with refusal("rego.undefined-rule", "p.long"):
            process.ask("p.long", '{"n": 40}')
    time.sleep(0.7)  # nor does waiting count
    process.ask("p.echo", "1")
    assert pid(process) == before


def test_all_questions_together_have_a_limit_of_their_own():
    """Each of them is within the limit for one."""
    limits = Limits(cpu_seconds=30.0, total_seconds=3.0)
    found = ""
    with closing(RegoProcess({"p.rego": MODULE}, RULES, limits)) as process:
        while "in all" not in found:
            with pytest.raises(RegoError) as raised:
                process.ask("p.long", '{"n": 100}')
            found = str(raised.value)
            assert "p.long is undefined" in found or isinstance(raised.value, ProcessEndedError)
    assert found == "it takes more than 3 s of CPU time in all"


def test_the_process_has_no_environment(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    with closing(RegoProcess({"p.rego": MODULE}, RULES)) as process:
        assert process.ask("p.echo", "1")[0] == 1
        assert psutil.Process(pid(process)).environ() == {}


SHOWS_ENVIRONMENT = """
import os, sys
from environments.rego import worker
class Shown(worker.Worker):
    def answer(self, command):
        return dict(os.environ)
worker.Worker = Shown
worker.main(10.0, 60.0, 2**30)
"""


def test_nor_does_it_keep_the_variables_that_its_loader_has_read():
    shown = subprocess.run(
        [sys.executable, "-c", SHOWS_ENVIRONMENT],
        input="{}\n",
        env={"LD_LIBRARY_PATH": "/secret", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == '{"result": {}}\n'


def test_compiling_has_the_same_limits():
    with refusal("rego.ended-process", "takes more than"):
        RegoProcess({"p.rego": MODULE}, RULES, Limits(cpu_seconds=1e-6))
    with refusal("rego.ended-process", "takes more than"):
        RegoProcess({"p.rego": MODULE}, RULES, Limits(memory_bytes=1000))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM], ids=str)
def test_a_process_that_somebody_ends_costs_one_answer(process, number):
    os.kill(pid(process), number)
    with refusal("rego.ended-process", f"status -{number}"):
        process.ask("p.echo", "1")
    assert process.ask("p.echo", "2")[0] == 2


def test_the_terminal_interrupts_the_parent_alone(process):
    before = pid(process)
    os.kill(before, signal.SIGINT)
    assert process.ask("p.echo", "1")[0] == 1
    assert pid(process) == before


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next(process, monkeypatch):
    child = process._child

    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(child.stdout, "readline", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.ask("p.echo", '"late"')
    assert process.ask("p.echo", '"next"')[0] == "next"


def test_threads_get_their_own_answers(process):
    answers: dict[int, object] = {}

    def ask(number: int) -> None:
        for _ in range(20):
            answers[number] = process.ask("p.echo", str(number))[0]
            assert answers[number] == number

    threads = [Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: number for number in range(8)}


NO_ANSWER = {
    "an unknown rule": ("p.nothing", "{}", "undefined"),
    "an error in a built-in function": ("p.bad", "{}", "ended with an error"),
    "input that is no JSON": ("p.echo", "{", "no answer"),
    "input of several lines": ("p.echo", "1\n2", "no answer"),
}


@pytest.mark.parametrize(("rule", "given", "message"), NO_ANSWER.values(), ids=NO_ANSWER.keys())
def test_no_answer_is_an_error_and_the_process_goes_on(process, rule, given, message):
    before = pid(process)
    with pytest.raises(RegoError, match=message):
        process.ask(rule, given)
    assert process.ask("p.echo", "3")[0] == 3
    assert pid(process) == before


def test_it_ends_with_whoever_asked():
    process = RegoProcess({"p.rego": MODULE}, RULES)
    number = pid(process)
    del process
    gc.collect()
    assert not is_alive(number)


SCRIPT = """
import sys
from environments.rego.process import RegoProcess
process = RegoProcess({"p.rego": "package p\\nx := 1"}, ["p.x"])
print(process.ask("p.x", "{}")[0], process._child.pid, flush=True)
if sys.argv[1] == "dies":
    import os
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["ends", "dies"])
def test_it_ends_with_the_program_whose_main_module_cannot_be_imported(how, tmp_path):
    """As in a Ray worker or a notebook: the program is read from standard input."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-", how],
        input=SCRIPT,
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    value, number = done.stdout.split()
    assert value == "1"
    for _ in range(100):
        if not is_alive(int(number)):
            return
        time.sleep(0.05)
    raise AssertionError("it still runs")
