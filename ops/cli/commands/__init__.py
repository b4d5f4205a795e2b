"""Commands about runs, planning and services, a folder for each; other subjects have theirs in rooms of their own."""
