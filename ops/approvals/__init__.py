"""What waits for a decision: its view, its command, its routes and its pages."""
