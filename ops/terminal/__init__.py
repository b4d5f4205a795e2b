"""What commands share: options, what the caller names, permissions, failures, drivers of several runs."""
