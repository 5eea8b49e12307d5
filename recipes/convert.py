"""Make a model that `from_pretrained` loads of whatever a run wrote."""

import sys

from equipoise.cli import guarded
from equipoise.conversion.options import parse_options
from equipoise.conversion.to_hugging_face import convert

if __name__ == "__main__":
    options = parse_options()
    sys.exit(
        guarded(
            lambda reporter: convert(options.source, options.destination, options.base, reporter)
        )
    )
