"""Tests of the portable form of the ledger."""
