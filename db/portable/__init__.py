"""The ledger's rows in a form that every database can take back: exported in one transaction, and loaded."""
