"""What a home no longer needs: how much room it takes, runs to archive, and runs that may be deleted."""
