"""What pages and routes share: who calls, what a page has in common, templates, static files."""
