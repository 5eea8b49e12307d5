"""Train a health assistant to stay within healthcare, rated by a judge and decided by a policy."""

from equipoise.cli import main

if __name__ == "__main__":
    main("dharma", __doc__)
