"""Runs all tests in parts, and records which have passed for which state of the product."""
