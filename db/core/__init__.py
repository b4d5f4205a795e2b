"""What all of the ledger stands on: engine and transactions, tables, migrations, errors, lines of iterations."""
