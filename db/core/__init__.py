"""The foundation of the ledger: engine, transactions, tables, migrations, errors and the lineage of branches."""
