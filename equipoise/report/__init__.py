"""The report of a run: one self-contained HTML file."""

from equipoise.report.report import write_report

__all__ = ["write_report"]
