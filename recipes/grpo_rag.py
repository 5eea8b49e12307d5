"""Train a rewriter to search for what a frozen generator needs to answer a question."""

from equipoise.cli import main

if __name__ == "__main__":
    main("rag", __doc__)
