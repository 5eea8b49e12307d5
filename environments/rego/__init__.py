"""Rego, run by rego-cpp in a process of its own that ends itself where a policy takes too much.

    process.py        what the rest of the program uses: compile modules, ask a rule
    worker.py         the process: one command per line in, one answer per line out, within limits;
                      regopy compiles and evaluates in it
    plan.py           a compiled policy: what it may do, and which clauses an evaluation reached

The process imports nothing of this project but this package, so that it starts in an instant.
"""
