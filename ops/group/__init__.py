"""The service group of `yatt up`: what runs in it, how it is started, watched and ended."""
