"""The command line `yatt`: `main` is the program, `commands` holds its commands by subject, `options` and `lookup` are shared."""
