"""The commands of `yatt`, a folder for each subject; each module has `register`, which adds its commands."""
