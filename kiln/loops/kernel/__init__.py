"""Kernels: units of work, and the phases that each unit goes through."""
