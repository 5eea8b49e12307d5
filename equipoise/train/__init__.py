"""Engines: what turns prompts and an environment into a trained model.

An engine is a function that takes a `Job` and leaves baseline/, final/, training_history.jsonl and
final_checkpoint/ in its run directory, doing only what is not there yet.
"""
