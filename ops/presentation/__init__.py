"""Text, tables, pages and pictures for people, shared by commands, dashboard and workers."""
