"""Shows things to people: words, tables, pages and pictures that commands, dashboard and workers share."""
