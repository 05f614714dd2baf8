"""Reports made from events: text of ten lines, JSON, log, progress."""

from kiln.report.listeners import ProgressBar, log_stages
from kiln.report.report import Break, Report

__all__ = ["Break", "ProgressBar", "Report", "log_stages"]
