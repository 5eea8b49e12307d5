"""Train a clinical language model to decide the same whatever the patient's race."""

from equipoise.cli import main

if __name__ == "__main__":
    main("fairness", __doc__)
