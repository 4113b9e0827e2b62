"""Rows to tables, charts and one page. Built from a run folder alone, without a GPU and without the data."""

from fedleak.report.page import build_report
from fedleak.report.tables import Summary, summary

__all__ = ["Summary", "build_report", "summary"]
