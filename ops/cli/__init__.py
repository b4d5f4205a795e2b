"""The command line `yatt`: `main` is the program, `commands` its commands by subject; they share `options` and `lookup`."""
