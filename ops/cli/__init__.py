"""The command line `yatt`: the program in `main`, the table of all commands, and those about runs, planning and services."""
