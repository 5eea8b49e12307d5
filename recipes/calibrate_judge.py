"""Measure how far a judge of the dharma task agrees with labels, and with another judge."""

import sys

from equipoise.calibration import calibrate, parse_options
from equipoise.terminal.exits import guarded

if __name__ == "__main__":
    options = parse_options()
    sys.exit(guarded(lambda reporter: calibrate(options, reporter)))
