"""The command line `yatt`: the program in `main`, its commands by subject in `commands`, and what they share."""
