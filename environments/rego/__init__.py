"""Rego, run by rego-cpp in a process of its own that ends itself where a policy takes too much.

    process.py        what the rest of the program uses: compile modules, ask a rule
    worker.py         the process: one command per line in, one answer per line out, within limits
    engine.py         compile and evaluate with regopy
    plan.py           how a compiled policy is made up
    capabilities.py   what a policy may do: statements and functions by name, the input as it is
    marks.py          which clauses of which rules an evaluation reached

The process imports nothing of this project but this package, so that it starts in an instant.
"""
