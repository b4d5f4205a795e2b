"""Read-only queries for people, audits and accounts."""
