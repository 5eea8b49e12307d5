"""The head of a report states a run's time, tokens, memory and requests in words."""

from equipoise.report.head import run_notes, usage_facts
from equipoise.report.run_files import RunFiles


def facts(usage, **after):
    found = RunFiles(
        provenance={"usage": usage, "seconds": {"baseline": 1000.2, "training": 3000.2}},
        evaluations={"before": {}, "after": after},
    )
    return dict(usage_facts(found))


def test_time_tokens_memory_and_what_was_asked():
    judge = {"calls": 2300.0, "cache_hits": 100.0, "failures": 3.0, "prompt_tokens": 1e6}
    judge |= {"completion_tokens": 234_000.0, "answers_without_usage": 1.0, "cost": 1.2}
    usage = {"seconds": 7.0, "peak_memory_bytes": 1.29e9, "calls": {"j": judge}}
    usage |= {"prompt_tokens": 1_234_567, "completion_tokens": 999, "peak_gpu_memory_bytes": 8e9}
    assert facts(usage, completion_tokens=5000, generation_time_seconds=2.5) == {
        "Time": "1:06:40",
        "Tokens": "1.23M of prompts, 999 generated, 2k per second of evaluation",
        "Peak memory": "1.3 GB, 8.0 GB of the GPU",
        "Asked j": (
            "2,300 calls, 100 answers from the cache, 3 failed, "
            "1.23M tokens (in part guessed), cost 1.20"
        ),
    }


def test_what_is_not_known_is_left_out():
    usage = {"peak_gpu_memory_bytes": 0, "calls": {"j": {"calls": 1}}}
    assert facts(usage) == {"Time": "1:06:40", "Asked j": "1 calls"}


def test_a_run_that_a_stand_in_judged_says_so():
    notes = run_notes(RunFiles(provenance={"stand_in": "no model judges"}))
    assert notes[-1] == "no model judges."
