"""Train a language model to answer biomedical questions from the evidence of an abstract."""

from equipoise.cli import main

if __name__ == "__main__":
    main("pubmedqa", __doc__)
