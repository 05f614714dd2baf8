"""Tests that a user could have written: the first hour with Kiln."""
