"""Reports made from events: a text, JSON, log, progress."""

from kiln.report.listeners import ProgressBar, log_names, log_stages
from kiln.report.report import Break, Report

__all__ = ["Break", "ProgressBar", "Report", "log_names", "log_stages"]
