"""The machinery that is no environment: configuration, engines, evaluation, report."""
