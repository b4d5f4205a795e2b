"""Queries for people, audits and accounts. They write nothing."""
