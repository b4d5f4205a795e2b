"""The commands of `yatt`, one folder per subject; each module's `register` adds its commands."""
